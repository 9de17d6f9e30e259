// Refuses JSON that is nested deeper than any request to TensorFlow Serving (nginx.conf runs this).
//
// TensorFlow Serving reads JSON without a bound on nesting: 100,000 brackets end its process. The
// longest way down is {"instances": [{"options": [{"b64": ...}]}]}, five levels.
const DEEPEST = 8;

function check(request) {
  // nginx may hold a body in a file if its length is not announced. Files cannot be read here.
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

// Reads bytes as a parser does that stops at the first error: brackets in strings do not count.
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
