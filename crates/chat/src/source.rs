//! Preparation of a template's text, as Jinja2 with the extensions of transformers would read it.

/// Unifies line ends, and turns the `generation` block of transformers, which only marks training
/// targets, into a block that always renders. Lines keep their numbers.
pub(crate) fn prepare(source: &str) -> String {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let mut out = String::with_capacity(source.len());
    let mut rest = source.as_str();
    while let Some(start) = rest.find("{%") {
        let (text, tag) = rest.split_at(start);
        let Some(end) = tag.find("%}") else { break };
        let inner = &tag[2..end];
        let name = inner.trim_matches(|c: char| c.is_whitespace() || c == '-' || c == '+');
        let replacement = match name {
            "generation" => "if true",
            "endgeneration" => "endif",
            other => other,
        };
        out.push_str(text);
        out.push_str("{%");
        if replacement == name {
            out.push_str(inner);
        } else {
            out.push_str(&inner.replacen(name, replacement, 1));
        }
        out.push_str("%}");
        rest = &tag[end + 2..];
    }
    out.push_str(rest);
    out
}
