//! Chats: chat MODEL [WORKER] reads a message from each line. WORKER: the program that runs files without a plan.
use satchel::{Engine, Message, Model, ModelOptions, Options};
use std::io::{stdin, stdout, Write};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (path, worker) = (std::env::args().nth(1).ok_or("chat MODEL [WORKER]")?, std::env::args().nth(2));
    let engine = if worker.is_some() { Engine::Either } else { Engine::Library };
    let model = Model::open_with(&path, &ModelOptions { engine, worker, ..Default::default() })?;
    let mut messages = vec![];
    for line in stdin().lines() {
        messages.push(Message { role: "user", content: line? });
        let mut content = String::new();
        for piece in model.chat(&messages, &Options::default().temperature(0.0).max_tokens(64))? {
            let piece = piece?;
            print!("{piece}");
            stdout().flush()?;
            content += &piece;
        }
        println!();
        messages.push(Message { role: "assistant", content });
    }
    Ok(())
}
