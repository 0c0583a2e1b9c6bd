"""Room 3: batch to hidden states. The Transformer and the two RNN systems behind one doorway."""
