"""What `decode.py` compares: one file for each system, run in processes of their own."""
