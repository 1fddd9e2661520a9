//! Continues a text: complete MODEL TEXT, where `satchel build` made the model file.
use std::io::{stdout, Write};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().collect();
    let [_, path, text] = &words[..] else { return Err("complete MODEL TEXT".into()) };
    let model = satchel::Model::open(path)?;
    for piece in model.generate(text, &satchel::Options::default().temperature(0.0).max_tokens(64))? {
        print!("{}", piece?);
        stdout().flush()?;
    }
    Ok(())
}
