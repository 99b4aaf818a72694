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

// longestName is the longest that a plan may be called, so that there is room for the numbers of its pieces.
const longestName = 230

// planStore keeps the changes of one plan as objects that belong to it: when it is deleted, so are they.
type planStore struct {
	changes resource[v1alpha1.PlanChanges]
	secrets resource[v1alpha1.PlanSecrets]
	owner   metav1.OwnerReference
	// namespace and plan that it is of.
	namespace, plan string
}

func newPlanStore(api resources, p *v1alpha1.Plan) *planStore {
	return &planStore{
		changes: api.changes, secrets: api.secrets, namespace: p.Namespace, plan: p.Name,
		owner: metav1.OwnerReference{APIVersion: v1alpha1.Group + "/" + v1alpha1.Version, Kind: "Plan", Name: p.Name, UID: p.UID},
	}
}

func (s *planStore) piece(chunk, piece int) string {
	return fmt.Sprintf("%s-%d-%d", s.plan, chunk, piece)
}

// saltName cannot be that of a piece of any plan: those end with a number.
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

// Shown and Sealed read pieces until there are no more.
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

// newSalt makes the salt of the plan, over one that an earlier attempt may have left.
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
		return nil, fmt.Errorf("the PlanSecrets %s are gone, without which plan %s cannot be carried out: make another plan", s.saltName(), s.plan)
	}
	return spec.Content, nil
}

func putPieces[T any](ctx context.Context, s *planStore, r resource[T], chunk int, pieces [][]byte, object func(string, v1alpha1.PlanPieceSpec) *T) error {
	again := false
	for n, content := range pieces {
		spec := v1alpha1.PlanPieceSpec{Plan: s.plan, Chunk: int32(chunk), Piece: int32(n), Content: content}
		there, err := putPiece(ctx, s, r, s.piece(chunk, n), spec, object)
		if err != nil {
			return fmt.Errorf("store chunk %d of plan %s: %w", chunk, s.plan, err)
		}
		again = again || there
	}
	if len(pieces) > 0 && !again {
		return nil
	}
	// An earlier attempt may have had more of them.
	for n := len(pieces); ; n++ {
		switch err := r.delete(ctx, s.namespace, s.piece(chunk, n), "", ""); {
		case apierrors.IsNotFound(err):
			return nil
		case err != nil:
			return fmt.Errorf("delete what is left of chunk %d of an earlier attempt at plan %s: %w", chunk, s.plan, err)
		}
	}
}

// putPiece tells whether there was one before.
func putPiece[T any](ctx context.Context, s *planStore, r resource[T], name string, spec v1alpha1.PlanPieceSpec, object func(string, v1alpha1.PlanPieceSpec) *T) (bool, error) {
	_, err := r.create(ctx, s.namespace, object(name, spec))
	if !apierrors.IsAlreadyExists(err) {
		return false, discreet(err)
	}
	for range attempts {
		u, err := r.in(s.namespace).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			// That of a deleted plan of the same name, which went just now.
			if _, err = r.create(ctx, s.namespace, object(name, spec)); err == nil {
				return true, nil
			}
			if !apierrors.IsAlreadyExists(err) {
				return true, discreet(err)
			}
			continue
		}
		if err != nil {
			return true, err
		}
		next, err := r.wire(object(name, spec))
		if err != nil {
			return true, err
		}
		next.SetResourceVersion(u.GetResourceVersion())
		next.SetUID(u.GetUID())
		_, err = r.in(s.namespace).Update(ctx, next, metav1.UpdateOptions{FieldManager: manager})
		if err == nil || !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			return true, discreet(err)
		}
	}
	return true, errors.New("somebody else writes it all the time")
}

func getPieces[T any](ctx context.Context, s *planStore, r resource[T], chunk int, parts func(*T) (*metav1.ObjectMeta, *v1alpha1.PlanPieceSpec)) ([][]byte, error) {
	var out [][]byte
	for n := 0; ; n++ {
		spec, err := getPiece(ctx, s, r, s.piece(chunk, n), parts)
		if err != nil {
			return nil, fmt.Errorf("read chunk %d of plan %s: %w", chunk, s.plan, err)
		}
		if spec == nil {
			return out, nil
		}
		out = append(out, spec.Content)
	}
}

// getPiece gives nil if there is none that belongs to the plan.
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
