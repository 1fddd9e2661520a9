"""The flags of llama.cpp's programs llama-cli and llama-server, and what each of them does here."""
