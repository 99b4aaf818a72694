package workspaces

import (
	"context"
	"errors"
	"fmt"
	"path"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"

	"github.com/atoll-dev/atoll/kv"
)

// limited returns the error of a write as the API answers it: a workspace beyond its limits is like a namespace beyond its quota.
func (s *requestStore) limited(ctx context.Context, key string, err error) error {
	if compiled, ok := errors.AsType[*compiledError](err); ok {
		return apierrors.NewForbidden(s.group, path.Base(key), compiled.in(PathOf(ctx)))
	}
	exceeded, ok := errors.AsType[*kv.LimitError](err)
	if !ok {
		return err
	}
	workspace, _ := ctx.Value(pathKey{}).(string)
	message := limitMessage(workspace, exceeded)
	if s.reserves != nil {
		message += reservationHint(exceeded)
	}
	return apierrors.NewForbidden(s.group, path.Base(key), errors.New(message))
}

// limitMessage says which limit is exceeded, and what to do about it. Requests of the server itself do not know the path.
func limitMessage(workspace string, e *kv.LimitError) string {
	of := "the workspace"
	if workspace != "" {
		of = fmt.Sprintf("workspace %q", workspace)
	}
	field := fieldOf(e)
	return fmt.Sprintf("exceeded limit of %s: %s %d, requested %d more, limit %d: delete %s or raise spec.limits.%s", of, field, e.Used, e.Requested, e.Limit, deletable(field), field)
}

// fieldOf returns the name of a limit in spec.limits.
func fieldOf(e *kv.LimitError) string {
	switch e.Resource {
	case "keys":
		return "objects"
	case "units":
		return "workspaces"
	}
	return e.Resource
}

// deletable returns the objects whose deletion makes room.
func deletable(field string) string {
	if field == "workspaces" {
		return "workspaces"
	}
	return "objects"
}

// reservationHint says how much is left for an object that takes a part of the limits.
func reservationHint(e *kv.LimitError) string {
	return fmt.Sprintf(" there, or lower spec.limits.%s of this one, which is taken from it: %d remain", fieldOf(e), max(e.Limit-e.Used, 0))
}

// exemptDeletion makes an update that marks an object as being deleted possible at a limit. The mark makes the object a little larger,
// and only the server sets it. Updates by the server itself are exempt too: its controllers finish deletions. Later updates of users
// are not.
func exemptDeletion(ctx context.Context, update storage.UpdateFunc) (context.Context, storage.UpdateFunc) {
	ctx, exempt := kv.WithExemption(ctx)
	return ctx, func(existing runtime.Object, m storage.ResponseMeta) (runtime.Object, *uint64, error) {
		before := isBeingDeleted(existing) // update may change it in place
		updated, ttl, err := update(existing, m)
		exempt(err == nil && (isServers(ctx) || !before && isBeingDeleted(updated)))
		return updated, ttl, err
	}
}

func isBeingDeleted(obj runtime.Object) bool {
	m, err := meta.Accessor(obj)
	return err == nil && m.GetDeletionTimestamp() != nil
}
