package docker

import (
	"context"
	"errors"
	"net/http"
	"net/url"
)

// HasNetwork reports whether there is a network of that name.
func (e *Engine) HasNetwork(ctx context.Context, name string) (bool, error) {
	err := e.do(ctx, http.MethodGet, "/networks/"+url.PathEscape(name), nil, nil)
	if errors.Is(err, ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}
