import java.util.ArrayList;
import java.util.List;
import java.util.Scanner;
import satchel.*;

/** Chats: Chat MODEL [WORKER] reads a message from each line. WORKER: the program that runs files without a plan. */
public final class Chat {
    public static void main(String[] words) {
        ModelOptions how = new ModelOptions();
        if (words.length > 1)
            how.engine(ModelOptions.Engine.EITHER).worker(words[1]);
        List<Message> messages = new ArrayList<>();
        try (Model model = new Model(words[0], how); Scanner lines = new Scanner(System.in, "UTF-8")) {
            for (; lines.hasNextLine(); System.out.println()) {
                messages.add(new Message("user", lines.nextLine()));
                StringBuilder answer = new StringBuilder();
                try (Reply reply = model.chat(messages, new Options().temperature(0).maxTokens(64))) {
                    for (String piece : reply) {
                        System.out.print(piece);
                        answer.append(piece);
                    }
                }
                messages.add(new Message("assistant", answer.toString()));
            }
        }
    }
}
