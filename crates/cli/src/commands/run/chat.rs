//! A chat: the turns so far, and the loop that reads new ones.

use super::answer::Answerer;
use anyhow::{Result, anyhow};
use laneway_frontend::ChatTemplate;
use serde_json::{Value, json};
use std::io::{self, BufRead, Write};

/// A chat with the model.
pub(super) struct Chat {
    answerer: Answerer,
    template: ChatTemplate,
    /// What stands before the first turn.
    opening: Vec<Value>,
    messages: Vec<Value>,
    seed: u64,
}

impl Chat {
    /// A chat without turns.
    pub(super) fn new(
        answerer: Answerer,
        template: ChatTemplate,
        system: Option<&str>,
        seed: u64,
    ) -> Self {
        let opening: Vec<Value> = system.map(|text| message("system", text)).into_iter().collect();
        Chat { answerer, template, messages: opening.clone(), opening, seed }
    }

    /// One turn: the user's text, then the model's answer.
    pub(super) fn turn(&mut self, text: &str) -> Result<()> {
        self.messages.push(message("user", text));
        match self.answer() {
            Ok(answer) => {
                self.messages.push(message("assistant", &answer));
                Ok(())
            }
            Err(error) => {
                // The turn did not happen, so the chat can go on.
                self.messages.pop();
                Err(error)
            }
        }
    }

    fn answer(&self) -> Result<String> {
        let prompt = self.template.render(&self.messages).map_err(|error| {
            anyhow!("the model's chat template does not take this chat: {error}")
        })?;
        let tokens = self.answerer.tokenizer.encode(&prompt, false)?;
        self.answerer.answer(tokens, self.seed)
    }

    /// Reads turns from standard input until it ends.
    pub(super) fn converse(&mut self) -> Result<()> {
        eprintln!("/reset forgets the chat, /exit ends it, Ctrl-C stops an answer");
        let mut lines = io::stdin().lock().lines();
        loop {
            eprint!("> ");
            io::stderr().flush()?;
            let Some(line) = lines.next().transpose()? else {
                eprintln!();
                return Ok(());
            };
            match line.trim() {
                "" => {}
                "/exit" => return Ok(()),
                "/reset" => self.messages.clone_from(&self.opening),
                command if command.starts_with('/') => {
                    eprintln!("{command:?} is no command; there are /reset and /exit");
                }
                text => {
                    if let Err(error) = self.turn(text) {
                        eprintln!("error: {error:#}");
                    }
                }
            }
        }
    }
}

fn message(role: &str, content: &str) -> Value {
    json!({ "role": role, "content": content })
}
