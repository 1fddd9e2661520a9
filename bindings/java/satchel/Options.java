package satchel;

/** Options of an answer. */
public final class Options {
    /** 0: the likeliest token. */
    public float temperature = 0.8f;
    /** Most tokens of the answer; -1: up to the context's end. */
    public long maxTokens = -1;
    /** Of the random numbers; -1: drawn. */
    public long seed = -1;

    public Options temperature(float value) {
        temperature = value;
        return this;
    }

    public Options maxTokens(long value) {
        maxTokens = value;
        return this;
    }

    public Options seed(long value) {
        seed = value;
        return this;
    }
}
