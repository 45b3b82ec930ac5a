// Package buildcache decides whether a container image that exists stands for
// what a build would make now.
//
// It works on descriptions: the entries of a build context, a Dockerfile's
// text, the labels of images. Whoever calls it has read these in the guest, on
// the tree that is built. The package knows no engine, no VM, no lease and no
// tool; everything in it is a pure function.
//
//	ign, err := buildcache.ParseIgnore(dockerignore)
//	seen, err := buildcache.Scan(ctx, ign, entries, cfg.StalenessDetection.CheckDependencies)
//	file := buildcache.ParseDockerfile(text)
//	key := buildcache.Input{Content: ctx.Hash, Dockerfile: file.Hash, …}.Key()
//	decision := buildcache.Decide(cfg, state, …)
//
// The invariant: an image that docker_build made is reused only for the key that
// it was made of, which the caller has on record. The key covers every byte of
// the context that Docker would send, .dockerignore, the Dockerfile, target,
// build arguments and the base images that the engine has. Settings can only
// make reuse rarer. What a build fetches from the network is not covered, as in
// Docker's own layer cache; the age threshold bounds it.
package buildcache
