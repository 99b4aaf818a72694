package plans

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
)

// maxPlanNameLength leaves room for the numbers that the names of a plan's pieces end with.
const maxPlanNameLength = 230

// planStore stores the changes of one plan as objects that the plan owns: they are deleted with it.
type planStore struct {
	changes resource[v1alpha1.PlanChanges]
	secrets resource[v1alpha1.PlanSecrets]
	owner   metav1.OwnerReference
	// namespace and plan identify the plan.
	namespace, plan string
}

func newPlanStore(api resources, p *v1alpha1.Plan) *planStore {
	return &planStore{
		changes: api.changes, secrets: api.secrets, namespace: p.Namespace, plan: p.Name,
		owner: metav1.OwnerReference{APIVersion: v1alpha1.Group + "/" + v1alpha1.Version, Kind: "Plan", Name: p.Name, UID: p.UID},
	}
}

func (s *planStore) pieceName(chunk, piece int) string {
	return fmt.Sprintf("%s-%d-%d", s.plan, chunk, piece)
}

// saltName never collides with the name of a piece: those end with a number.
func (s *planStore) saltName() string { return s.plan + "-salt" }

func (s *planStore) meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: s.namespace, Name: name, OwnerReferences: []metav1.OwnerReference{s.owner}}
}

func (s *planStore) Put(ctx context.Context, chunk int, shown, sealed [][]byte) error {
	err := putPieces(ctx, s, s.changes, chunk, shown, func(name string, spec v1alpha1.PlanPieceSpec) *v1alpha1.PlanChanges {
		return &v1alpha1.PlanChanges{ObjectMeta: s.meta(name), Spec: spec}
	})
	if err != nil {
		return err
	}
	return putPieces(ctx, s, s.secrets, chunk, sealed, s.secretOf)
}

func (s *planStore) secretOf(name string, spec v1alpha1.PlanPieceSpec) *v1alpha1.PlanSecrets {
	return &v1alpha1.PlanSecrets{ObjectMeta: s.meta(name), Spec: spec}
}

// Shown and Sealed read pieces until the first that does not exist.
func (s *planStore) Shown(ctx context.Context, chunk int) ([][]byte, error) {
	return getPieces(ctx, s, s.changes, chunk, func(p *v1alpha1.PlanChanges) (*metav1.ObjectMeta, *v1alpha1.PlanPieceSpec) {
		return &p.ObjectMeta, &p.Spec
	})
}

func (s *planStore) Sealed(ctx context.Context, chunk int) ([][]byte, error) {
	return getPieces(ctx, s, s.secrets, chunk, secretParts)
}

func secretParts(p *v1alpha1.PlanSecrets) (*metav1.ObjectMeta, *v1alpha1.PlanPieceSpec) {
	return &p.ObjectMeta, &p.Spec
}

// newSalt stores a new salt for the plan. It replaces the salt of an earlier attempt.
func (s *planStore) newSalt(ctx context.Context) ([]byte, error) {
	salt := make([]byte, 32)
	if _, err := rand.Read(salt); err != nil {
		return nil, err
	}
	spec := v1alpha1.PlanPieceSpec{Plan: s.plan, Content: salt}
	if _, err := putPiece(ctx, s, s.secrets, s.saltName(), spec, s.secretOf); err != nil {
		return nil, fmt.Errorf("store the salt of plan %s: %w", s.plan, err)
	}
	return salt, nil
}

func (s *planStore) salt(ctx context.Context) ([]byte, error) {
	spec, err := getPiece(ctx, s, s.secrets, s.saltName(), secretParts)
	if err != nil {
		return nil, err
	}
	if spec == nil {
		return nil, fmt.Errorf("PlanSecrets %s not found, which plan %s needs to be applied: create another plan", s.saltName(), s.plan)
	}
	return spec.Content, nil
}

func putPieces[T any](ctx context.Context, s *planStore, r resource[T], chunk int, pieces [][]byte, object func(string, v1alpha1.PlanPieceSpec) *T) error {
	replaced := false
	for n, content := range pieces {
		spec := v1alpha1.PlanPieceSpec{Plan: s.plan, Chunk: int32(chunk), Piece: int32(n), Content: content}
		there, err := putPiece(ctx, s, r, s.pieceName(chunk, n), spec, object)
		if err != nil {
			return fmt.Errorf("store chunk %d of plan %s: %w", chunk, s.plan, err)
		}
		replaced = replaced || there
	}
	if len(pieces) > 0 && !replaced {
		return nil
	}
	// An earlier attempt may have stored more pieces.
	for n := len(pieces); ; n++ {
		switch err := r.delete(ctx, s.namespace, s.pieceName(chunk, n), "", ""); {
		case apierrors.IsNotFound(err):
			return nil
		case err != nil:
			return fmt.Errorf("delete leftover pieces of chunk %d of plan %s: %w", chunk, s.plan, err)
		}
	}
}

// putPiece stores a piece, and reports whether it existed before.
func putPiece[T any](ctx context.Context, s *planStore, r resource[T], name string, spec v1alpha1.PlanPieceSpec, object func(string, v1alpha1.PlanPieceSpec) *T) (bool, error) {
	_, err := r.create(ctx, s.namespace, object(name, spec))
	if !apierrors.IsAlreadyExists(err) {
		return false, redacted(err)
	}
	for range maxAttempts {
		u, err := r.in(s.namespace).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			// The existing one belonged to a deleted plan of the same name, and was deleted just now.
			if _, err = r.create(ctx, s.namespace, object(name, spec)); err == nil {
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
		next, err := r.encode(object(name, spec))
		if err != nil {
			return true, err
		}
		next.SetResourceVersion(u.GetResourceVersion())
		next.SetUID(u.GetUID())
		_, err = r.in(s.namespace).Update(ctx, next, metav1.UpdateOptions{FieldManager: manager})
		if err == nil || !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			return true, redacted(err)
		}
	}
	return true, errors.New("too many conflicts with another writer")
}

func getPieces[T any](ctx context.Context, s *planStore, r resource[T], chunk int, parts func(*T) (*metav1.ObjectMeta, *v1alpha1.PlanPieceSpec)) ([][]byte, error) {
	var out [][]byte
	for n := 0; ; n++ {
		spec, err := getPiece(ctx, s, r, s.pieceName(chunk, n), parts)
		if err != nil {
			return nil, fmt.Errorf("read chunk %d of plan %s: %w", chunk, s.plan, err)
		}
		if spec == nil {
			return out, nil
		}
		out = append(out, spec.Content)
	}
}

// getPiece returns nil if no such piece belongs to the plan.
func getPiece[T any](ctx context.Context, s *planStore, r resource[T], name string, parts func(*T) (*metav1.ObjectMeta, *v1alpha1.PlanPieceSpec)) (*v1alpha1.PlanPieceSpec, error) {
	got, err := r.get(ctx, s.namespace, name)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	meta, spec := parts(got)
	if !ownedBy(meta, s.owner.UID) {
		return nil, nil
	}
	return spec, nil
}

func ownedBy(meta *metav1.ObjectMeta, uid types.UID) bool {
	for _, owner := range meta.OwnerReferences {
		if owner.UID == uid {
			return true
		}
	}
	return false
}
