/* Asks a SavedModel through TensorFlow's C API: no Python, no code of this project.

   ask SAVED_MODEL LIBRARIES INPUTS OUTPUTS TEXT...

   LIBRARIES  operations to load: paths with commas between
   INPUTS     tensors as the signature names them, OPERATION:INDEX, with commas between
   OUTPUTS    float tensors, the same
   TEXT...    the texts of the first input, then as many of the second, and so on

   Prints each output as a line: its numbers with spaces between.
*/
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensorflow/c/c_api.h"
#include "tensorflow/c/tf_tstring.h"

#define MOST 16

static void check(const TF_Status *status) {
  if (TF_GetCode(status) != TF_OK) {
    fprintf(stderr, "error: %s\n", TF_Message(status));
    exit(1);
  }
}

/* Splits names at the commas, in place; returns how many there are. */
static int split(char *names, char **found) {
  int count = 0;
  for (char *name = strtok(names, ","); name; name = strtok(NULL, ",")) {
    if (count == MOST) {
      fprintf(stderr, "error: more than %d names\n", MOST);
      exit(2);
    }
    found[count++] = name;
  }
  return count;
}

/* Finds OPERATION:INDEX in the graph. */
static TF_Output find(TF_Graph *graph, char *name) {
  char *colon = strrchr(name, ':');
  TF_Output output = {NULL, 0};
  if (colon) {
    *colon = 0;
    output.oper = TF_GraphOperationByName(graph, name);
    output.index = atoi(colon + 1);
  }
  if (!output.oper) {
    fprintf(stderr, "error: no operation %s\n", name);
    exit(2);
  }
  return output;
}

static void free_texts(void *data, size_t length, void *unused) {
  (void)unused;
  TF_TString *texts = data;
  for (size_t i = 0; i < length / sizeof *texts; ++i) TF_StringDealloc(&texts[i]);
  free(data);
}

static TF_Tensor *string_tensor(char **texts, int64_t count) {
  TF_TString *strings = malloc(count * sizeof *strings);
  for (int64_t i = 0; i < count; ++i) {
    TF_StringInit(&strings[i]);
    TF_StringCopy(&strings[i], texts[i], strlen(texts[i]));
  }
  return TF_NewTensor(TF_STRING, &count, 1, strings, count * sizeof *strings, free_texts, NULL);
}

int main(int argc, char **argv) {
  if (argc < 6) {
    fprintf(stderr, "usage: ask SAVED_MODEL LIBRARIES INPUTS OUTPUTS TEXT...\n");
    return 2;
  }
  char *names[MOST];
  TF_Status *status = TF_NewStatus();
  int num_libraries = split(argv[2], names);
  for (int i = 0; i < num_libraries; ++i) {
    TF_LoadLibrary(names[i], status);
    check(status);
  }

  const char *tags[] = {"serve"};
  TF_Graph *graph = TF_NewGraph();
  TF_SessionOptions *options = TF_NewSessionOptions();
  TF_Session *session =
      TF_LoadSessionFromSavedModel(options, NULL, argv[1], tags, 1, graph, NULL, status);
  check(status);

  TF_Output inputs[MOST], outputs[MOST];
  TF_Tensor *values[MOST], *answers[MOST];
  int num_inputs = split(argv[3], names);
  int num_texts = (argc - 5) / num_inputs;
  for (int i = 0; i < num_inputs; ++i) {
    inputs[i] = find(graph, names[i]);
    values[i] = string_tensor(argv + 5 + i * num_texts, num_texts);
  }
  int num_outputs = split(argv[4], names);
  for (int i = 0; i < num_outputs; ++i) outputs[i] = find(graph, names[i]);

  TF_SessionRun(session, NULL, inputs, values, num_inputs, outputs, answers, num_outputs, NULL, 0,
                NULL, status);
  check(status);
  for (int i = 0; i < num_outputs; ++i) {
    if (TF_TensorType(answers[i]) != TF_FLOAT) {
      fprintf(stderr, "error: output %d is not float\n", i);
      return 2;
    }
    const float *numbers = TF_TensorData(answers[i]);
    for (int64_t j = 0; j < TF_TensorElementCount(answers[i]); ++j) printf("%.9g ", numbers[j]);
    printf("\n");
    TF_DeleteTensor(answers[i]);
  }

  for (int i = 0; i < num_inputs; ++i) TF_DeleteTensor(values[i]);
  TF_CloseSession(session, status);
  TF_DeleteSession(session, status);
  TF_DeleteGraph(graph);
  TF_DeleteSessionOptions(options);
  TF_DeleteStatus(status);
  return 0;
}
