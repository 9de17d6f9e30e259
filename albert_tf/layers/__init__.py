"""The layers of ALBERT.

Shapes: b examples, L = seq_len, P selected positions, V = vocab_size, E = embedding_size,
H = hidden_size, N heads, D = H / N. Between the embeddings and the encoder's output the pieces of
all examples form one matrix `[b * L, H]`, so a Dense layer is one matmul. On a CPU a training step
then takes a quarter less time than with `[b, L, H]`.
"""
