//go:build unix

package workspace

import (
	"context"
	"io"
)

// interloper does something just before files are fetched.
type interloper struct {
	*dirGuest
	before func()
}

func (i *interloper) GetTar(ctx context.Context, g GetTar) (io.ReadCloser, error) {
	i.before()
	return i.dirGuest.GetTar(ctx, g)
}
