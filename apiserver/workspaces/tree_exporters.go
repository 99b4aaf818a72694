package workspaces

import (
	"context"
	"errors"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// exporterFollow follows, for a watch of a custom kind in one workspace, the APIExport that the workspace has the kind from. It keeps the exporter open.
type exporterFollow struct {
	*chain
	w        *Workspace
	resource schema.GroupResource
	// of is the export that is followed, and changed receives after its changes; nil if none is.
	of      exportRef
	changed <-chan struct{}
	end     func()
}

// exportRef names an export, and the workspace that has it.
type exportRef struct{ path, uid, name string }

// errUnfollowed is returned if the changes of an export are unknown from now on.
var errUnfollowed = errors.New("the changes of the APIExport cannot be followed")

// renew follows the export that the workspace is bound to now.
func (f *exporterFollow) renew(ctx context.Context) error {
	b, err := f.bindingOf(ctx, f.w, f.resource.Group)
	if err != nil {
		return err
	}
	var of exportRef
	if b != nil && b.ExporterPath != "" {
		of = exportRef{b.ExporterPath, b.ExporterUID, b.Export}
	}
	if of == f.of {
		return nil
	}
	f.stop()
	f.of = of
	if of == (exportRef{}) {
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	in, exporter, release, err := f.open(ctx, of.path)
	if err == nil && exporter.uid != of.uid {
		release()
		err = ErrNotFound
	}
	if errors.Is(err, ErrNotFound) { // it is gone for good: UIDs are never used again
		cancel()
		return nil
	}
	if err != nil {
		cancel()
		return err
	}
	f.end = func() {
		cancel()
		release()
	}
	f.changed, err = exporter.follow(in, customKey(exportResource)+of.name)
	return err
}

// ended is called when the export cannot be followed any more.
// Errors: errUnfollowed if the exporter is still there.
func (f *exporterFollow) ended(ctx context.Context) error {
	of := f.of
	f.stop()
	if err := f.renew(ctx); err != nil {
		return err
	}
	if f.of == of && f.changed != nil {
		return errUnfollowed
	}
	return nil
}

func (f *exporterFollow) stop() {
	if f.end != nil {
		f.end()
	}
	f.of, f.changed, f.end = exportRef{}, nil, nil
}

// followCustom follows what decides whether a workspace has a custom kind: what own receives, and the export that it is bound to. The channel is closed
// when the changes cannot be followed any more, or ctx ends.
func (s treeScope) followCustom(ctx context.Context, w *Workspace, own <-chan struct{}) (<-chan struct{}, error) {
	f := &exporterFollow{chain: s.chain, w: w, resource: s.resource}
	if err := f.renew(ctx); err != nil {
		f.stop()
		return nil, err
	}
	changed := make(chan struct{}, 1)
	go func() {
		defer close(changed)
		defer f.stop()
		for {
			var more bool
			var err error
			select {
			case _, more = <-own:
				err = f.renew(ctx)
			case _, more = <-f.changed:
				if !more && ctx.Err() == nil {
					more, err = true, f.ended(ctx)
				}
			}
			if !more || err != nil {
				return
			}
			select {
			case changed <- struct{}{}:
			default: // the reader has not read the last one yet
			}
		}
	}()
	return changed, nil
}
