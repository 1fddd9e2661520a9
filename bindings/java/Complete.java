import satchel.Model;
import satchel.Options;
import satchel.Reply;

/** Continues a text: Complete MODEL TEXT, where `satchel build` made the model file. */
public final class Complete {
    public static void main(String[] words) {
        Options options = new Options().temperature(0).maxTokens(64);
        try (Model model = new Model(words[0]); Reply reply = model.generate(words[1], options)) {
            for (String piece : reply) {
                System.out.print(piece);
                System.out.flush();
            }
        }
    }
}
