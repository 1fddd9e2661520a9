"""Tasks of a model besides answering: embeddings, reranking, perplexity, benchmarks."""
