package apistore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/controllers"
)

// MaxPlanNameLength leaves room for the numbers that the names of a plan's pieces end with.
const MaxPlanNameLength = 230

// PlanStore stores the changes of one plan as objects that the plan owns: they are deleted with it. It
// implements planstore.Store.
type PlanStore struct {
	changes pieces[v1alpha1.PlanChanges]
	secrets pieces[v1alpha1.PlanSecrets]
}

// NewPlanStore returns the store of a plan.
func NewPlanStore(client dynamic.Interface, p *v1alpha1.Plan) *PlanStore {
	of := planID{
		namespace: p.Namespace, name: p.Name,
		owner: metav1.OwnerReference{APIVersion: v1alpha1.Group + "/" + v1alpha1.Version, Kind: "Plan", Name: p.Name, UID: p.UID},
	}
	return &PlanStore{
		changes: pieces[v1alpha1.PlanChanges]{
			planID: of,
			api:    controllers.NewClient[v1alpha1.PlanChanges](client, v1alpha1.PlanChangesResource, "PlanChanges", FieldManager),
			parts: func(p *v1alpha1.PlanChanges) (*metav1.ObjectMeta, *v1alpha1.PlanPieceSpec) {
				return &p.ObjectMeta, &p.Spec
			},
		},
		secrets: pieces[v1alpha1.PlanSecrets]{
			planID: of,
			api:    controllers.NewClient[v1alpha1.PlanSecrets](client, v1alpha1.PlanSecretsResource, "PlanSecrets", FieldManager),
			parts: func(p *v1alpha1.PlanSecrets) (*metav1.ObjectMeta, *v1alpha1.PlanPieceSpec) {
				return &p.ObjectMeta, &p.Spec
			},
		},
	}
}

// Put stores a whole chunk and overwrites one of an earlier attempt.
func (s *PlanStore) Put(ctx context.Context, chunk int, shown, sealed [][]byte) error {
	if err := s.changes.putChunk(ctx, chunk, shown); err != nil {
		return err
	}
	return s.secrets.putChunk(ctx, chunk, sealed)
}

// Shown reads the pieces of a chunk that readers of the plan see, until the first that does not exist.
func (s *PlanStore) Shown(ctx context.Context, chunk int) ([][]byte, error) {
	return s.changes.getChunk(ctx, chunk)
}

// Sealed reads the pieces of a chunk that contain secrets, until the first that does not exist.
func (s *PlanStore) Sealed(ctx context.Context, chunk int) ([][]byte, error) {
	return s.secrets.getChunk(ctx, chunk)
}

// NewSalt stores a new salt for the plan. It replaces the salt of an earlier attempt.
func (s *PlanStore) NewSalt(ctx context.Context) ([]byte, error) {
	salt := make([]byte, 32)
	if _, err := rand.Read(salt); err != nil {
		return nil, err
	}
	spec := v1alpha1.PlanPieceSpec{Plan: s.secrets.name, Content: salt}
	if _, err := s.secrets.put(ctx, s.secrets.saltName(), spec); err != nil {
		return nil, fmt.Errorf("store the salt of plan %s: %w", s.secrets.name, err)
	}
	return salt, nil
}

// Salt reads the salt of the plan.
func (s *PlanStore) Salt(ctx context.Context) ([]byte, error) {
	spec, err := s.secrets.get(ctx, s.secrets.saltName())
	if err != nil {
		return nil, err
	}
	if spec == nil {
		return nil, fmt.Errorf("PlanSecrets %s not found, which plan %s needs to be applied: create another plan", s.secrets.saltName(), s.secrets.name)
	}
	return spec.Content, nil
}

// planID identifies a plan.
type planID struct {
	namespace, name string
	owner           metav1.OwnerReference
}

func (p *planID) pieceName(chunk, piece int) string {
	return fmt.Sprintf("%s-%d-%d", p.name, chunk, piece)
}

// saltName never collides with the name of a piece: those end with a number.
func (p *planID) saltName() string { return p.name + "-salt" }

func (p *planID) owns(meta *metav1.ObjectMeta) bool {
	for _, owner := range meta.OwnerReferences {
		if owner.UID == p.owner.UID {
			return true
		}
	}
	return false
}

// pieces are the pieces of a plan that are objects of one kind.
type pieces[T any] struct {
	planID
	api controllers.Client[T]
	// parts returns the metadata and the spec of an object.
	parts func(*T) (*metav1.ObjectMeta, *v1alpha1.PlanPieceSpec)
}

// build returns an object with a spec. The UID and the resourceVersion are those of the object that it
// replaces, or empty.
func (p *pieces[T]) build(name string, spec v1alpha1.PlanPieceSpec, uid types.UID, resourceVersion string) *T {
	out := new(T)
	meta, content := p.parts(out)
	*meta = metav1.ObjectMeta{
		Namespace: p.namespace, Name: name, UID: uid, ResourceVersion: resourceVersion,
		OwnerReferences: []metav1.OwnerReference{p.owner},
	}
	*content = spec
	return out
}

func (p *pieces[T]) putChunk(ctx context.Context, chunk int, all [][]byte) error {
	replaced := false
	for n, content := range all {
		spec := v1alpha1.PlanPieceSpec{Plan: p.name, Chunk: int32(chunk), Piece: int32(n), Content: content}
		there, err := p.put(ctx, p.pieceName(chunk, n), spec)
		if err != nil {
			return fmt.Errorf("store chunk %d of plan %s: %w", chunk, p.name, err)
		}
		replaced = replaced || there
	}
	if len(all) > 0 && !replaced {
		return nil
	}
	// An earlier attempt may have stored more pieces.
	for n := len(all); ; n++ {
		switch err := p.api.Delete(ctx, p.namespace, p.pieceName(chunk, n), "", ""); {
		case apierrors.IsNotFound(err):
			return nil
		case err != nil:
			return fmt.Errorf("delete leftover pieces of chunk %d of plan %s: %w", chunk, p.name, err)
		}
	}
}

// put stores a piece, and reports whether it existed before.
func (p *pieces[T]) put(ctx context.Context, name string, spec v1alpha1.PlanPieceSpec) (bool, error) {
	_, err := p.api.Create(ctx, p.namespace, p.build(name, spec, "", ""))
	if !apierrors.IsAlreadyExists(err) {
		return false, redacted(err)
	}
	for range maxAttempts {
		existing, err := p.api.Get(ctx, p.namespace, name)
		if apierrors.IsNotFound(err) {
			// The existing one belonged to a deleted plan of the same name, and was deleted just now.
			if _, err = p.api.Create(ctx, p.namespace, p.build(name, spec, "", "")); err == nil {
				return true, nil
			}
			if !apierrors.IsAlreadyExists(err) {
				return true, redacted(err)
			}
			continue
		}
		if err != nil {
			return true, err
		}
		meta, _ := p.parts(existing)
		_, err = p.api.Update(ctx, p.namespace, p.build(name, spec, meta.UID, meta.ResourceVersion))
		if err == nil || !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			return true, redacted(err)
		}
	}
	return true, errors.New("too many conflicts with another writer")
}

func (p *pieces[T]) getChunk(ctx context.Context, chunk int) ([][]byte, error) {
	var out [][]byte
	for n := 0; ; n++ {
		spec, err := p.get(ctx, p.pieceName(chunk, n))
		if err != nil {
			return nil, fmt.Errorf("read chunk %d of plan %s: %w", chunk, p.name, err)
		}
		if spec == nil {
			return out, nil
		}
		out = append(out, spec.Content)
	}
}

// get returns nil if no such piece belongs to the plan.
func (p *pieces[T]) get(ctx context.Context, name string) (*v1alpha1.PlanPieceSpec, error) {
	got, err := p.api.Get(ctx, p.namespace, name)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	meta, spec := p.parts(got)
	if !p.owns(meta) {
		return nil, nil
	}
	return spec, nil
}
