"""The layers of ALBERT.

Shapes: b examples, L = seq_len, N heads, D = H / N, H = hidden_size. Between the embeddings and
the encoder's output the tokens of all examples lie in one matrix `[b * L, H]`: a Dense layer is
then one matrix product, which saves a quarter of a training step on a CPU over `[b, L, H]`.
"""
