//! How much the last rows of a prompt attend to each of its tokens.

use crate::cpu::CpuDevice;
use crate::cpu::attention::{Heads, gammas};
use crate::cpu::matmul::Shared;
use crate::cpu::ops::check;
use crate::prompt::{TailProductsArgs, TailWeightsArgs};

impl CpuDevice {
    pub(super) fn tail_products_op(&self, args: TailProductsArgs<'_>) {
        const OP: &str = "tail_products";
        let (heads, kv_heads, dim) = (args.num_heads, args.num_kv_heads, args.head_dim);
        let (tokens, queries) = (args.num_tokens, args.num_queries);
        assert!(
            queries <= tokens && args.first_key + args.num_keys <= tokens,
            "{OP}: more rows than the prompt has"
        );
        let (q_len, k_len) = (heads * dim, kv_heads * dim);
        check(OP, "q", args.q.len(), queries * q_len);
        check(OP, "k", args.k.len(), args.num_keys * k_len);
        check(OP, "out", args.out.len(), queries * heads * tokens);
        let (q_norm, k_norm) = gammas(args.head_norm);
        let mut q = args.q.host()[..queries * q_len].to_vec();
        for (i, row) in q.chunks_exact_mut(q_len).enumerate() {
            Heads::plain(dim, q_norm, args.rope).prepare(row, tokens - queries + i);
        }
        let scale = 1.0 / (dim as f32).sqrt();
        let group = heads / kv_heads;
        let keys = args.k.host();
        let out = Shared::new(args.out.host_mut());
        self.each(args.num_keys, |j| {
            let token = args.first_key + j;
            let mut k = keys[j * k_len..][..k_len].to_vec();
            Heads::plain(dim, k_norm, args.rope).prepare(&mut k, token);
            for (i, q) in q.chunks_exact(dim).enumerate() {
                let k = &k[i % heads / group * dim..][..dim];
                let product: f32 = q.iter().zip(k).map(|(q, k)| q * k).sum();
                // SAFETY: each thread writes the column of its own tokens; the size was checked above.
                unsafe { *out.at(i * tokens + token) = product * scale };
            }
        });
    }

    pub(super) fn tail_weights_op(&self, args: TailWeightsArgs<'_>) {
        const OP: &str = "tail_weights";
        let (heads, tokens, queries) = (args.num_heads, args.num_tokens, args.num_queries);
        assert!(queries <= tokens, "{OP}: more rows than the prompt has");
        let all = queries * heads * tokens;
        check(OP, "products", args.products.len(), all);
        check(OP, "out", args.out.len(), queries * tokens);
        let products = args.products.host();
        let out = Shared::new(args.out.host_mut());
        self.each(queries, |t| {
            let seen = tokens - queries + t + 1;
            // SAFETY: each row is changed by one thread only; the size was checked above.
            let out = unsafe { std::slice::from_raw_parts_mut(out.at(t * tokens), seen) };
            let rows = products[t * heads * tokens..][..heads * tokens].chunks_exact(tokens);
            for row in rows.map(|row| &row[..seen]) {
                let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let total: f32 = row.iter().map(|x| (x - max).exp()).sum();
                for (out, x) in out.iter_mut().zip(row) {
                    *out = out.max((x - max).exp() / total);
                }
            }
        });
    }
}
