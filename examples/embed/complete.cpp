/* complete.cpp: continues a text by satchel.hpp: complete MODEL TEXT, where `satchel build` made the model file (docs/apps.md). */
#include <iostream>
#include "satchel.hpp"

int main(int argc, char **argv) {
    if (argc != 3)
        return std::cerr << "complete MODEL TEXT\n", 2;
    try {
        satchel::Model model(argv[1]);
        satchel::GenerateOptions options;
        options.temperature = 0;
        options.max_tokens = 64;
        for (const satchel::Piece &piece : model.generate(argv[2], options))
            std::cout << piece.text << std::flush;
    } catch (const satchel::Error &error) {
        return std::cerr << error.what() << "\n", 1;
    }
}
