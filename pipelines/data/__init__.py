"""From files of text to batches of sentence-order and masked-LM examples."""
