// Continues a text: Complete MODEL TEXT, where `satchel build` made the model file. No machine with Swift has run it yet.
import Satchel

var model: OpaquePointer?
var reply: OpaquePointer?
var options = satchel_generate_options()
satchel_generate_options_init(&options, UInt32(MemoryLayout<satchel_generate_options>.size))
options.temperature = 0
options.max_tokens = 64
if satchel_open(CommandLine.arguments[1], nil, &model) < 0
    || satchel_generate_text(model, CommandLine.arguments[2], -1, 0, &options, &reply) < 0 {
    fatalError(String(cString: satchel_error()))
}
var piece = satchel_piece()
piece.size = UInt32(MemoryLayout<satchel_piece>.size)
while satchel_reply_next(reply, &piece) > 0 { print(String(cString: piece.text), terminator: "") }
satchel_reply_free(reply)
satchel_close(model)
