package buildcache

// The labels of built images.
const (
	LabelCommit       = "git.commit"
	LabelBranch       = "git.branch"
	LabelTime         = "build.timestamp"
	LabelDependencies = "build.dependencies.hash"
	LabelContent      = "build.content.hash"
	LabelDockerfile   = "build.dockerfile.hash"
	LabelRevision     = "org.opencontainers.image.revision"
	LabelCreated      = "org.opencontainers.image.created"
	// LabelKey is the build's key: only images that were made here have it.
	LabelKey    = "sandboxforge.build.key"
	LabelTarget = "sandboxforge.build.target"
	LabelArgs   = "sandboxforge.build.args"
)

// Labels is what a build of a state is labelled with. Without a key the image
// is never found again.
func Labels(s State, key, target string, args map[string]string) map[string]string {
	return filled(map[string]string{
		LabelCommit: s.Commit, LabelBranch: s.Branch, LabelTime: s.Timestamp(),
		LabelDependencies: s.Dependencies, LabelContent: s.Content, LabelDockerfile: s.Dockerfile,
		LabelRevision: s.Commit, LabelCreated: s.Timestamp(),
		LabelKey: key, LabelTarget: target, LabelArgs: ArgsHash(args),
	})
}
