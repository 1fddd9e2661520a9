//! Runs a model file that `satchel build` made, by the C library libsatchel.
//!
//! A [`Reply`] borrows its [`Model`], so the compiler keeps one open while the other lives. Both may be used from any thread.

pub mod ffi;

use std::ffi::{CStr, CString};
use std::marker::PhantomData;
use std::mem::{size_of, MaybeUninit};
use std::{error, fmt, ptr, slice};

/// A call that failed: a code SATCHEL_E_... of satchel.h, and the library's words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    pub code: i32,
    pub text: String,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl error::Error for Error {}

fn checked(code: i64) -> Result<i64, Error> {
    if code >= 0 {
        return Ok(code);
    }
    // The library keeps a text for each thread, which is valid until this thread's next error.
    let text = unsafe { CStr::from_ptr(ffi::satchel_error()) };
    Err(Error { code: code as i32, text: text.to_string_lossy().into_owned() })
}

/// The options of an answer, with the library's defaults. Those that `Options` has no method for are fields of `raw`.
pub struct Options {
    pub raw: ffi::GenerateOptions,
}

impl Default for Options {
    fn default() -> Self {
        let mut raw = MaybeUninit::<ffi::GenerateOptions>::zeroed();
        // Every bit pattern of zeros is a value of the struct, and the library fills the defaults in.
        let raw = unsafe {
            ffi::satchel_generate_options_init(raw.as_mut_ptr(), size_of::<ffi::GenerateOptions>() as u32);
            raw.assume_init()
        };
        Options { raw }
    }
}

impl Options {
    /// 0: the likeliest token.
    pub fn temperature(mut self, value: f32) -> Self {
        self.raw.temperature = value;
        self
    }
    /// Most tokens of the answer; -1: up to the context's end.
    pub fn max_tokens(mut self, value: i64) -> Self {
        self.raw.max_tokens = value;
        self
    }
    /// Of the random numbers; -1: drawn.
    pub fn seed(mut self, value: i64) -> Self {
        self.raw.seed = value;
        self
    }
}

/// What computes: the library, a worker process, or that for files without a plan.
#[derive(Debug, Clone, Copy, Default)]
pub enum Engine {
    #[default]
    Library = 0,
    Worker = 1,
    Either = 2,
}

/// Options of a model; 0 and None: as the file or the machine says.
#[derive(Debug, Clone, Default)]
pub struct ModelOptions {
    /// Tokens of a prompt and its answer.
    pub context: i32,
    /// Replies at a time.
    pub slots: i32,
    pub threads: i32,
    pub engine: Engine,
    /// The worker's program, a path or a name in PATH.
    pub worker: Option<String>,
}

/// A part of a conversation. role: system, user or assistant.
pub struct Message {
    pub role: &'static str,
    pub content: String,
}

/// A conversation as JSON.
fn request_of(messages: &[Message]) -> String {
    let quoted = |text: &str| {
        let escaped = text.chars().map(|c| match c {
            '"' | '\\' => format!("\\{c}"),
            c if c < ' ' => format!("\\u{:04x}", c as u32),
            c => c.to_string(),
        });
        format!("\"{}\"", escaped.collect::<String>())
    };
    let parts = messages
        .iter()
        .map(|m| format!("{{\"role\": {}, \"content\": {}}}", quoted(m.role), quoted(&m.content)));
    format!("{{\"messages\": [{}]}}", parts.collect::<Vec<_>>().join(", "))
}

fn zero_ended(what: &str, text: &str) -> Result<CString, Error> {
    CString::new(text).map_err(|_| Error { code: -1, text: format!("{what}: expected no zero byte, got one") })
}

/// An open model.
pub struct Model(*mut ffi::Model);

// Every function of satchel.h may be called from any thread.
unsafe impl Send for Model {}
unsafe impl Sync for Model {}

impl Model {
    pub fn open(path: &str) -> Result<Model, Error> {
        Model::open_with(path, &ModelOptions::default())
    }

    pub fn open_with(path: &str, options: &ModelOptions) -> Result<Model, Error> {
        let path = zero_ended("path", path)?;
        let worker = options.worker.as_deref().map(|text| zero_ended("worker", text)).transpose()?;
        let mut model = ptr::null_mut();
        let mut raw = MaybeUninit::<ffi::ModelOptions>::zeroed();
        unsafe {
            ffi::satchel_model_options_init(raw.as_mut_ptr(), size_of::<ffi::ModelOptions>() as u32);
            let mut raw = raw.assume_init();
            raw.context = options.context;
            raw.slots = options.slots;
            raw.threads = options.threads;
            raw.engine = options.engine as i32;
            raw.worker = worker.as_ref().map_or(ptr::null(), |text| text.as_ptr());
            checked(ffi::satchel_open(path.as_ptr(), &raw, &mut model).into())?;
        }
        Ok(Model(model))
    }

    pub fn tokenize(&self, text: &str) -> Result<Vec<i32>, Error> {
        let (at, length) = (text.as_ptr().cast(), text.len() as i64);
        let count = checked(unsafe { ffi::satchel_tokenize(self.0, at, length, 0, ptr::null_mut(), 0) })?;
        let mut ids = vec![0; count as usize];
        checked(unsafe { ffi::satchel_tokenize(self.0, at, length, 0, ids.as_mut_ptr(), count) })?;
        Ok(ids)
    }

    /// Begins an answer, whose pieces the iterator computes.
    pub fn generate(&self, text: &str, options: &Options) -> Result<Reply<'_>, Error> {
        let mut reply = ptr::null_mut();
        let (at, length) = (text.as_ptr().cast(), text.len() as i64);
        checked(unsafe { ffi::satchel_generate_text(self.0, at, length, 0, &options.raw, &mut reply) }.into())?;
        Ok(Reply { handle: reply, over: false, model: PhantomData })
    }

    /// Begins the answer to a conversation.
    pub fn chat(&self, messages: &[Message], options: &Options) -> Result<Reply<'_>, Error> {
        let request = request_of(messages);
        let (mut prompt, mut reply, mut count) = (ptr::null_mut(), ptr::null_mut(), 0);
        let (at, length) = (request.as_ptr().cast(), request.len() as i64);
        unsafe {
            checked(ffi::satchel_chat_render(self.0, at, length, &mut prompt).into())?;
            let ids = ffi::satchel_chat_prompt_ids(prompt, &mut count);
            let begun = checked(ffi::satchel_generate(self.0, ids, count, &options.raw, &mut reply).into());
            ffi::satchel_chat_prompt_free(prompt);
            begun?;
        }
        Ok(Reply { handle: reply, over: false, model: PhantomData })
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        unsafe { ffi::satchel_close(self.0) }
    }
}

/// An answer under way: an iterator over texts of whole characters. After an error it is over.
pub struct Reply<'m> {
    handle: *mut ffi::Reply,
    over: bool,
    model: PhantomData<&'m Model>,
}

unsafe impl Send for Reply<'_> {}

impl Reply<'_> {
    /// Tokens of the prompt, those of them that a slot had, and those of the answer so far.
    pub fn counts(&self) -> Result<(i64, i64, i64), Error> {
        let size = size_of::<ffi::ReplyReport>() as u32;
        let mut told =
            ffi::ReplyReport { size, reason: 0, prompt_tokens: 0, cached_tokens: 0, tokens: 0, seed: 0 };
        checked(unsafe { ffi::satchel_report(self.handle, &mut told) }.into())?;
        Ok((told.prompt_tokens, told.cached_tokens, told.tokens))
    }
}

impl Iterator for Reply<'_> {
    type Item = Result<String, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.over {
            return None;
        }
        let size = size_of::<ffi::Piece>() as u32;
        let mut piece = ffi::Piece { size, token: 0, text: ptr::null(), length: 0 };
        match checked(unsafe { ffi::satchel_reply_next(self.handle, &mut piece) }.into()) {
            Ok(0) => {
                self.over = true;
                None
            }
            Ok(_) => {
                let bytes = unsafe { slice::from_raw_parts(piece.text.cast(), piece.length as usize) };
                Some(Ok(String::from_utf8_lossy(bytes).into_owned()))
            }
            Err(error) => {
                self.over = true;
                Some(Err(error))
            }
        }
    }
}

impl Drop for Reply<'_> {
    fn drop(&mut self) {
        unsafe { ffi::satchel_reply_free(self.handle) }
    }
}
