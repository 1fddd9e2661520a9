// Chats: Chat MODEL [WORKER] reads a message from each line. WORKER: the program that runs files without a plan.
using System;
using System.Collections.Generic;

static class Chat {
    static void Main(string[] words) {
        var options = Satchel.GenerateOptions.Default;
        options.Temperature = 0;
        options.MaxTokens = 64;
        string worker = words.Length > 1 ? words[1] : null;
        var engine = worker == null ? Satchel.Engine.Library : Satchel.Engine.Either;
        using (var model = new Satchel.Model(words[0], new Satchel.ModelOptions { Engine = engine }, worker)) {
            var messages = new List<Satchel.Message>();
            for (string line; (line = Console.ReadLine()) != null; Console.WriteLine()) {
                messages.Add(new Satchel.Message("user", line));
                string answer = "";
                foreach (string piece in model.Chat(messages, options)) {
                    Console.Write(piece);
                    answer += piece;
                }
                messages.Add(new Satchel.Message("assistant", answer));
            }
        }
    }
}
