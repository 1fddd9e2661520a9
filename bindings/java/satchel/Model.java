package satchel;

import java.nio.charset.StandardCharsets;
import java.util.HashSet;
import java.util.Set;

/** An open model, from a file that `satchel build` made. Closing it ends its replies first. Any thread may use it. */
public final class Model implements AutoCloseable {
    static {
        System.loadLibrary("satchel_jni"); // searched in java.library.path
    }

    private final Set<Reply> replies = new HashSet<>();
    private long handle;

    public Model(String path) {
        this(path, new ModelOptions());
    }

    public Model(String path, ModelOptions o) {
        handle = open(zeroEnded(path), o.context, o.slots, o.threads, o.engine.ordinal(), zeroEnded(o.worker));
    }

    private static byte[] zeroEnded(String text) {
        return (text + '\0').getBytes(StandardCharsets.UTF_8);
    }

    /** Begins an answer to a text. */
    public Reply generate(String text, Options options) {
        return begin(text, false, options);
    }

    /** Begins the answer to a conversation. */
    public Reply chat(Iterable<Message> messages, Options options) {
        return begin(Message.request(messages), true, options);
    }

    private synchronized Reply begin(String text, boolean chat, Options options) {
        if (handle == 0)
            throw new IllegalStateException("the model is closed");
        byte[] raw = text.getBytes(StandardCharsets.UTF_8);
        Reply reply = new Reply(this, begin(handle, raw, chat, options.temperature, options.maxTokens, options.seed));
        replies.add(reply);
        return reply;
    }

    synchronized void forget(Reply reply) {
        replies.remove(reply);
    }

    private synchronized Set<Reply> open() {
        return new HashSet<>(replies);
    }

    @Override
    public void close() {
        for (Reply reply : open())
            reply.close();
        synchronized (this) {
            close(handle);
            handle = 0;
        }
    }

    private static native long open(byte[] path, int context, int slots, int threads, int engine, byte[] worker)
        throws SatchelException;

    private static native void close(long model);

    private static native long begin(long model, byte[] text, boolean chat, float temperature, long maxTokens, long seed)
        throws SatchelException;

    static native byte[] next(long reply) throws SatchelException;

    static native void free(long reply);
}
