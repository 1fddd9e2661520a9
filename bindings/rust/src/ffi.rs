//! satchel.h in Rust: the functions that this crate calls, and their structs field by field.

use std::ffi::{c_char, c_int};

#[repr(C)]
pub struct Model {
    _opaque: [u8; 0],
}

#[repr(C)]
pub struct Reply {
    _opaque: [u8; 0],
}

#[repr(C)]
pub struct ChatPrompt {
    _opaque: [u8; 0],
}

#[repr(C)]
pub struct ModelOptions {
    pub size: u32,
    pub context: i32,
    pub slots: i32,
    pub threads: i32,
    pub threads_decode: i32,
    pub engine: i32,
    pub worker: *const c_char,
}

#[repr(C)]
pub struct GenerateOptions {
    pub size: u32,
    pub flags: u32,
    pub seed: i64,
    pub max_tokens: i64,
    pub temperature: f32,
    pub top_k: i32,
    pub top_p: f32,
    pub min_p: f32,
    pub typical_p: f32,
    pub top_n_sigma: f32,
    pub xtc_probability: f32,
    pub xtc_threshold: f32,
    pub dynatemp_range: f32,
    pub dynatemp_exponent: f32,
    pub repeat_penalty: f32,
    pub presence_penalty: f32,
    pub frequency_penalty: f32,
    pub repeat_last_n: i32,
    pub mirostat: i32,
    pub mirostat_tau: f32,
    pub samplers: *const c_char,
}

#[repr(C)]
pub struct Piece {
    pub size: u32,
    pub token: i32,
    pub text: *const c_char,
    pub length: i64,
}

#[repr(C)]
pub struct ReplyReport {
    pub size: u32,
    pub reason: i32,
    pub prompt_tokens: i64,
    pub cached_tokens: i64,
    pub tokens: i64,
    pub seed: i64,
}

extern "C" {
    pub fn satchel_error() -> *const c_char;
    pub fn satchel_model_options_init(options: *mut ModelOptions, size: u32);
    pub fn satchel_open(path: *const c_char, options: *const ModelOptions, model: *mut *mut Model) -> c_int;
    pub fn satchel_close(model: *mut Model);
    pub fn satchel_tokenize(
        model: *const Model,
        text: *const c_char,
        length: i64,
        flags: u32,
        ids: *mut i32,
        room: i64,
    ) -> i64;
    pub fn satchel_generate_options_init(options: *mut GenerateOptions, size: u32);
    pub fn satchel_generate_text(
        model: *mut Model,
        text: *const c_char,
        length: i64,
        flags: u32,
        options: *const GenerateOptions,
        reply: *mut *mut Reply,
    ) -> c_int;
    pub fn satchel_chat_render(
        model: *const Model,
        request: *const c_char,
        length: i64,
        prompt: *mut *mut ChatPrompt,
    ) -> c_int;
    pub fn satchel_chat_prompt_ids(prompt: *const ChatPrompt, count: *mut i64) -> *const i32;
    pub fn satchel_chat_prompt_free(prompt: *mut ChatPrompt);
    pub fn satchel_generate(
        model: *mut Model,
        ids: *const i32,
        count: i64,
        options: *const GenerateOptions,
        reply: *mut *mut Reply,
    ) -> c_int;
    pub fn satchel_reply_next(reply: *mut Reply, piece: *mut Piece) -> c_int;
    pub fn satchel_report(reply: *const Reply, report: *mut ReplyReport) -> c_int;
    pub fn satchel_reply_free(reply: *mut Reply);
}
