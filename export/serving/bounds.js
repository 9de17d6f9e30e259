// Rejects JSON with a deeper nesting than any valid request to TensorFlow Serving. Used in nginx.conf.
//
// TensorFlow Serving does not limit the nesting of JSON, and 100,000 brackets crash its process. The
// deepest valid request is {"instances": [{"options": [{"b64": ...}]}]}, which has five levels.
const DEEPEST = 8;

function check(request) {
  // nginx may buffer a body of unknown length in a file. Files cannot be read here.
  if (request.variables.request_body_file) {
    refuse(request, 413, "the body in chunks is too large: send its Content-Length");
    return;
  }
  const body = request.requestBuffer;
  if (body !== undefined && isTooDeep(body)) {
    refuse(request, 400, `JSON is nested deeper than ${DEEPEST} levels`);
    return;
  }
  request.internalRedirect("@server");
}

function refuse(request, code, reason) {
  request.headersOut["Content-Type"] = "application/json";
  request.return(code, `{"error": "${reason}"}\n`);
}

// Counts brackets outside of strings, as a parser that stops at the first error would see them.
function isTooDeep(body) {
  let depth = 0;
  let isString = false;
  for (let i = 0; i < body.length; i++) {
    const byte = body[i];
    if (isString) {
      if (byte === 0x5c) {
        i++; // a backslash: the next byte does not end the string
      } else if (byte === 0x22) {
        isString = false;
      }
    } else if (byte === 0x22) {
      isString = true;
    } else if (byte === 0x5b || byte === 0x7b) {
      depth++;
      if (depth > DEEPEST) {
        return true;
      }
    } else if (byte === 0x5d || byte === 0x7d) {
      depth--;
    }
  }
  return false;
}

export default { check };
