/* chat.cpp: chats by satchel.hpp: chat MODEL [WORKER] reads a message from each line. WORKER: the program that runs files without a
 * plan (docs/apps.md). */
#include <iostream>
#include "satchel.hpp"

int main(int argc, char **argv) {
    satchel::ModelOptions how;
    satchel::GenerateOptions options;
    options.temperature = 0, options.max_tokens = 64;
    how.engine = argc > 2 ? SATCHEL_ENGINE_EITHER : SATCHEL_ENGINE_LIBRARY;
    how.worker = argc > 2 ? argv[2] : nullptr;
    try {
        satchel::Model model(argc > 1 ? argv[1] : "", how);
        std::vector<satchel::Message> messages;
        for (std::string line; std::getline(std::cin, line); std::cout << std::endl) {
            messages.push_back({"user", line});
            messages.push_back({"assistant", ""});
            satchel::Reply reply = model.chat({messages.begin(), messages.end() - 1}, options);
            for (const satchel::Piece &piece : reply) {
                std::cout << piece.text << std::flush;
                messages.back().content += piece.text;
            }
        }
    } catch (const satchel::Error &error) {
        return std::cerr << error.what() << "\n", 1;
    }
}
