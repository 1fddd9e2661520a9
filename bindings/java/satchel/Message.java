package satchel;

/** A part of a conversation. role: system, user or assistant. */
public final class Message {
    public final String role;
    public final String content;

    public Message(String role, String content) {
        this.role = role;
        this.content = content;
    }

    /** A conversation as JSON. */
    static String request(Iterable<Message> messages) {
        StringBuilder text = new StringBuilder("{\"messages\": [");
        String between = "{\"role\": ";
        for (Message one : messages) {
            quote(one.role, text.append(between));
            quote(one.content, text.append(", \"content\": "));
            text.append('}');
            between = ", {\"role\": ";
        }
        return text.append("]}").toString();
    }

    private static void quote(String raw, StringBuilder to) {
        to.append('"');
        for (char c : raw.toCharArray()) {
            if (c == '"' || c == '\\')
                to.append('\\').append(c);
            else if (c < ' ')
                to.append(String.format("\\u%04x", (int) c));
            else
                to.append(c);
        }
        to.append('"');
    }
}
