package satchel;

import java.nio.charset.StandardCharsets;
import java.util.Iterator;
import java.util.NoSuchElementException;

/** An answer under way: its texts, each of whole characters, computed as they are asked for. close() frees its slot. */
public final class Reply implements Iterable<String>, Iterator<String>, AutoCloseable {
    private final Model model;
    private long handle;
    private byte[] ahead;

    Reply(Model model, long handle) {
        this.model = model;
        this.handle = handle;
    }

    @Override
    public Iterator<String> iterator() {
        return this;
    }

    @Override
    public synchronized boolean hasNext() {
        if (ahead == null && handle != 0)
            ahead = Model.next(handle);
        return ahead != null;
    }

    @Override
    public synchronized String next() {
        if (!hasNext())
            throw new NoSuchElementException("the answer is over");
        String text = new String(ahead, StandardCharsets.UTF_8);
        ahead = null;
        return text;
    }

    @Override
    public void close() {
        synchronized (this) {
            Model.free(handle);
            handle = 0;
            ahead = null;
        }
        model.forget(this);
    }
}
