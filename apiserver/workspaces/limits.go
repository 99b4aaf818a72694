package workspaces

import (
	"context"
	"errors"
	"fmt"
	"path"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/atoll-dev/atoll/kv"
)

// limited returns the error of a write as the API answers it: a workspace beyond its limits is like a namespace beyond its quota.
func (s requestStore) limited(ctx context.Context, key string, err error) error {
	exceeded, ok := errors.AsType[*kv.LimitError](err)
	if !ok {
		return err
	}
	workspace, _ := ctx.Value(pathKey{}).(string)
	return apierrors.NewForbidden(s.group, path.Base(key), errors.New(limitMessage(workspace, exceeded)))
}

// limitMessage says which limit is exceeded, and what to do about it. Requests of the server itself do not know the path.
func limitMessage(workspace string, e *kv.LimitError) string {
	of := "the workspace"
	if workspace != "" {
		of = fmt.Sprintf("workspace %q", workspace)
	}
	field := "bytes"
	if e.Resource == "keys" {
		field = "objects"
	}
	return fmt.Sprintf("exceeded limit of %s: %s %d, requested %d more, limit %d: delete objects or raise spec.limits.%s", of, field, e.Used, e.Requested, e.Limit, field)
}
