// Chats: Chat MODEL reads a message from each line. No machine with Swift has run it yet.
import Foundation
import Satchel

var model: OpaquePointer?
if satchel_open(CommandLine.arguments[1], nil, &model) < 0 { fatalError(String(cString: satchel_error())) }
var messages: [[String: String]] = []
while let line = readLine() {
    messages.append(["role": "user", "content": line])
    let request = String(data: try! JSONSerialization.data(withJSONObject: ["messages": messages]), encoding: .utf8)!
    var prompt: OpaquePointer?, reply: OpaquePointer?, count: Int64 = 0, answer = ""
    if satchel_chat_render(model, request, -1, &prompt) < 0
        || satchel_generate(model, satchel_chat_prompt_ids(prompt, &count), count, nil, &reply) < 0 {
        fatalError(String(cString: satchel_error()))
    }
    satchel_chat_prompt_free(prompt)
    var piece = satchel_piece()
    piece.size = UInt32(MemoryLayout<satchel_piece>.size)
    while satchel_reply_next(reply, &piece) > 0 { answer += String(cString: piece.text) }
    satchel_reply_free(reply)
    print(answer)
    messages.append(["role": "assistant", "content": answer])
}
