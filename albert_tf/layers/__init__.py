"""The layers of ALBERT.

Symbols in shapes: batch size b, sequence length L, number of selected positions P. V = vocab_size,
E = embedding_size, H = hidden_size, N = number of heads, D = H / N. Hidden states have shape
`[b * L, H]`, so that a Dense layer is a single matmul. On a CPU, a training step then takes a
quarter less time than with shape `[b, L, H]`.
"""
