"""What a model does besides answering: embeddings, reranking, perplexity, benchmarks."""
