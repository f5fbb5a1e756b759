//! The names of rand 0.4, for which HumanEval-X was written, over rand 0.8.

use rand_0_8::distributions::{uniform::SampleUniform, Distribution, Standard};
pub use rand_0_8::{random, thread_rng, RngCore};

pub trait Rng: RngCore {
    fn gen<T>(&mut self) -> T
    where
        Standard: Distribution<T>,
    {
        rand_0_8::Rng::gen(self)
    }

    fn gen_range<T: SampleUniform + PartialOrd>(&mut self, low: T, high: T) -> T {
        rand_0_8::Rng::gen_range(self, low..high)
    }
}

impl<R: RngCore + ?Sized> Rng for R {}
