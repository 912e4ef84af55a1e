//! An OpenAPI document as it is put together.

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value, json};

const SCHEMAS: &str = "/components/schemas";

/// The document so far.
pub(super) struct Document {
    /// Of what is read: null is as good as nothing.
    bodies: SchemaGenerator,
    /// Of what is written: what is always there is required.
    answers: SchemaGenerator,
    paths: Map<String, Value>,
}

/// A route with one method.
pub(super) struct Operation<'d>(&'d mut Value);

/// What a route may answer.
pub(super) struct Answer {
    status: &'static str,
    what: &'static str,
    /// Media types and their schemas.
    content: Value,
}

impl Document {
    pub fn new() -> Self {
        let generator = |settings: SchemaSettings| {
            settings
                .with(|settings| {
                    settings.definitions_path = SCHEMAS.into();
                    settings.meta_schema = None;
                })
                .into_generator()
        };
        Self {
            bodies: generator(SchemaSettings::draft2020_12().for_deserialize()),
            answers: generator(SchemaSettings::draft2020_12().for_serialize()),
            paths: Map::new(),
        }
    }

    /// A route that is read.
    pub fn get(&mut self, path: &str, summary: &str) -> Operation<'_> {
        self.operation(path, "get", json!({ "summary": summary }))
    }

    /// A route that takes a `B` as JSON.
    pub fn post<B: JsonSchema>(&mut self, path: &str, summary: &str) -> Operation<'_> {
        let schema = self.bodies.subschema_for::<B>();
        let body =
            json!({ "required": true, "content": { "application/json": { "schema": schema } } });
        self.operation(
            path,
            "post",
            json!({ "summary": summary, "requestBody": body }),
        )
    }

    /// An `A` as JSON.
    pub fn json<A: JsonSchema>(&mut self, what: &'static str) -> Answer {
        let schema = self.answers.subschema_for::<A>();
        Answer::schema(what, schema.into())
    }

    /// An `A` as JSON, or `E`s in server-sent events.
    pub fn streamed<A: JsonSchema, E: JsonSchema>(&mut self, what: &'static str) -> Answer {
        let mut answer = self.json::<A>(what);
        let event = self.answers.subschema_for::<E>();
        // What this version of OpenAPI has no word for, later ones call so.
        answer.content["text/event-stream"] = json!({ "x-itemSchema": event });
        answer
    }

    /// Any other answer, which is an `E`.
    pub fn failure<E: JsonSchema>(&mut self) -> Value {
        let schema = self.answers.subschema_for::<E>();
        json!({ "description": "What is wrong.", "content": { "application/json": { "schema": schema } } })
    }

    /// The whole document.
    pub fn finish(mut self) -> Value {
        let mut schemas = self.bodies.take_definitions(true);
        schemas.extend(self.answers.take_definitions(true));
        json!({
            "openapi": "3.1.0",
            "info": {
                "title": "Tandem",
                "description": "Local inference of language models. Bodies are JSON; null is as good as nothing.",
                "version": env!("CARGO_PKG_VERSION"),
                "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
            },
            "paths": self.paths,
            "components": { "schemas": schemas },
        })
    }

    fn operation(&mut self, path: &str, method: &str, mut operation: Value) -> Operation<'_> {
        let parameters: Vec<Value> = path
            .split('/')
            .filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
            .map(|name| json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } }))
            .collect();
        if !parameters.is_empty() {
            operation["parameters"] = parameters.into();
        }
        operation["responses"] = json!({});
        let methods = self.paths.entry(path).or_insert_with(|| json!({}));
        methods[method] = operation;
        Operation(&mut methods[method])
    }
}

impl Operation<'_> {
    /// What it may answer.
    pub fn gives(self, answer: Answer) -> Self {
        self.0["responses"][answer.status] =
            json!({ "description": answer.what, "content": answer.content });
        self
    }

    /// What it answers otherwise.
    pub fn fails(self, failure: &Value) {
        self.0["responses"]["default"] = failure.clone();
    }
}

impl Answer {
    /// JSON as `schema` has it.
    pub fn schema(what: &'static str, schema: Value) -> Self {
        Self {
            status: "200",
            what,
            content: json!({ "application/json": { "schema": schema } }),
        }
    }

    /// A JSON object in which all `properties` are there.
    pub fn object(what: &'static str, properties: Value) -> Self {
        let names: Vec<&String> = properties
            .as_object()
            .into_iter()
            .flat_map(Map::keys)
            .collect();
        let schema = json!({ "type": "object", "required": names, "properties": properties });
        Self::schema(what, schema)
    }

    /// Text of a media type.
    pub fn text(what: &'static str, media_type: &str) -> Self {
        Self {
            status: "200",
            what,
            content: json!({ media_type: { "schema": { "type": "string" } } }),
        }
    }

    /// The same, or JSON for those who ask for it.
    pub fn or_json(mut self, schema: Value) -> Self {
        self.content["application/json"] = json!({ "schema": schema });
        self
    }

    pub fn with_status(self, status: &'static str) -> Self {
        Self { status, ..self }
    }
}
