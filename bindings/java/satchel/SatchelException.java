package satchel;

/** A call that failed: a code SATCHEL_E_... of satchel.h, and the library's words. */
public final class SatchelException extends RuntimeException {
    private static final long serialVersionUID = 1;
    public final int code;

    SatchelException(int code, String text) {
        super(text);
        this.code = code;
    }
}
