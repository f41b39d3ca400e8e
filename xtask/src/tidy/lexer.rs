//! Just enough of Rust's lexical rules to tell code from comments and literals.

/// Returns `source` with the insides of comments, strings and character literals blanked, line
/// breaks kept, so that a search finds code only and positions stay true.
pub(super) fn code_only(source: &str) -> String {
    let chars: Vec<char> = source.chars().collect();
    let mut code = String::with_capacity(source.len());
    let mut at = 0;
    while at < chars.len() {
        let end = literal_end(&chars, at);
        if end > at {
            code.extend(chars[at..end].iter().map(|&c| if c == '\n' { '\n' } else { ' ' }));
            at = end;
        } else {
            code.push(chars[at]);
            at += 1;
        }
    }
    code
}

/// End of the comment or literal that starts at `at`; `at` itself if none does.
fn literal_end(chars: &[char], at: usize) -> usize {
    let after = |i: usize| chars.get(at + i).copied();
    let in_word = at > 0 && is_word(chars[at - 1]);
    match chars[at] {
        '/' if after(1) == Some('/') => find(chars, at, |i| chars[i] == '\n'),
        '/' if after(1) == Some('*') => block_comment_end(chars, at),
        '"' => string_end(chars, at + 1),
        'r' if !in_word => raw_string_end(chars, at + 1).unwrap_or(at),
        'b' | 'c' if !in_word && after(1) == Some('r') => {
            raw_string_end(chars, at + 2).unwrap_or(at)
        }
        // 'x' and '\…' are literals, 'x alone is a lifetime.
        '\'' if after(1) == Some('\\') => {
            (find(chars, at + 3, |i| chars[i] == '\'') + 1).min(chars.len())
        }
        '\'' if after(2) == Some('\'') => at + 3,
        _ => at,
    }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn find(chars: &[char], from: usize, found: impl Fn(usize) -> bool) -> usize {
    (from..chars.len()).find(|&i| found(i)).unwrap_or(chars.len())
}

fn block_comment_end(chars: &[char], at: usize) -> usize {
    let (mut depth, mut i) = (0, at);
    while i + 1 < chars.len() {
        match (chars[i], chars[i + 1]) {
            ('/', '*') => (depth, i) = (depth + 1, i + 2),
            ('*', '/') if depth == 1 => return i + 2,
            ('*', '/') => (depth, i) = (depth - 1, i + 2),
            _ => i += 1,
        }
    }
    chars.len()
}

fn string_end(chars: &[char], mut i: usize) -> usize {
    while i < chars.len() {
        match chars[i] {
            '\\' => i += 2,
            '"' => return i + 1,
            _ => i += 1,
        }
    }
    chars.len()
}

/// End of a raw string whose hashes or quote start at `i`; none if it is no raw string.
fn raw_string_end(chars: &[char], i: usize) -> Option<usize> {
    let open = find(chars, i, |j| chars[j] != '#');
    if chars.get(open) != Some(&'"') {
        return None;
    }
    let hashes = open - i;
    let closes = |j: usize| {
        chars[j] == '"'
            && chars.len() > j + hashes
            && chars[j + 1..=j + hashes].iter().all(|&c| c == '#')
    };
    Some((find(chars, open + 1, closes) + 1 + hashes).min(chars.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(source: &str, wanted: &str) {
        assert_eq!(code_only(source), wanted, "{source:?}");
    }

    #[test]
    fn comments_are_blanked() {
        check("a // b\nc", "a     \nc");
        check("a /* b /* c */\n d */ e", "a             \n      e");
    }

    #[test]
    fn literals_are_blanked() {
        check(r#"f("a\"b", 'c', '\n')"#, "f(      ,    ,     )");
        check("r#\"a\"b\"# x", "         x");
        check("br\"ab\" x", "       x");
    }

    #[test]
    fn lifetimes_and_names_stay() {
        check("fn f<'a>(r: &'a str)", "fn f<'a>(r: &'a str)");
        check("for r in bar", "for r in bar");
    }

    #[test]
    fn escaped_quotes_end_where_they_should() {
        check(r"('\'', x)", "(    , x)");
        check(r"('\\', x)", "(    , x)");
    }

    #[test]
    fn unfinished_literals_end_with_the_file() {
        check("\"abc", "    ");
        check("/* abc", "      ");
        check("r##\"abc\"#", "         ");
        check("'\\", "  ");
    }
}
