// Continues a text: Complete MODEL TEXT, where `satchel build` made the model file.
using System;

static class Complete {
    static void Main(string[] words) {
        using (var model = new Satchel.Model(words[0])) {
            var options = Satchel.GenerateOptions.Default;
            options.Temperature = 0;
            options.MaxTokens = 64;
            foreach (string piece in model.Generate(words[1], options))
                Console.Write(piece);
        }
    }
}
