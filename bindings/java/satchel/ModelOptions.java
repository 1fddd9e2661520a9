package satchel;

/** Options of a model; 0: as the file or the machine says. */
public final class ModelOptions {
    /** What computes: the library, a worker process, or that for files without a plan. */
    public enum Engine { LIBRARY, WORKER, EITHER } // in the order of SATCHEL_ENGINE_

    /** Tokens of a prompt and its answer. */
    public int context;
    /** Replies at a time. */
    public int slots;
    public int threads;
    public Engine engine = Engine.LIBRARY;
    /** The worker's program, a path or a name in PATH. */
    public String worker = "satchel";

    public ModelOptions context(int value) {
        context = value;
        return this;
    }

    public ModelOptions slots(int value) {
        slots = value;
        return this;
    }

    public ModelOptions threads(int value) {
        threads = value;
        return this;
    }

    public ModelOptions engine(Engine value) {
        engine = value;
        return this;
    }

    public ModelOptions worker(String value) {
        worker = value;
        return this;
    }
}
