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
        this(path, 0, 0);
    }

    /** context: tokens; slots: replies at a time. 0: as the file says. */
    public Model(String path, int context, int slots) {
        handle = open((path + '\0').getBytes(StandardCharsets.UTF_8), context, slots);
    }

    /** Begins an answer to a text. */
    public synchronized Reply generate(String text, Options options) {
        if (handle == 0)
            throw new IllegalStateException("the model is closed");
        byte[] raw = text.getBytes(StandardCharsets.UTF_8);
        Reply reply = new Reply(this, begin(handle, raw, options.temperature, options.maxTokens, options.seed));
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

    private static native long open(byte[] path, int context, int slots) throws SatchelException;

    private static native void close(long model);

    private static native long begin(long model, byte[] text, float temperature, long maxTokens, long seed) throws SatchelException;

    static native byte[] next(long reply) throws SatchelException;

    static native void free(long reply);
}
