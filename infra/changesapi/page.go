package changesapi

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
)

// pageBytes is the size at which a page is full, however few changes it has.
const pageBytes = 8 << 20

// page writes at most limit changes.
func page(ctx context.Context, w http.ResponseWriter, walk *changeReader, limit int) error {
	// written is a List of encoded items.
	written := struct {
		metav1.TypeMeta `json:",inline"`
		metav1.ListMeta `json:"metadata"`
		Items           []json.RawMessage `json:"items"`
	}{
		TypeMeta: metav1.TypeMeta{APIVersion: schema.GroupVersion{Group: v1alpha1.Group, Version: v1alpha1.Version}.String(), Kind: ListKind},
		ListMeta: metav1.ListMeta{ResourceVersion: walk.plan.ResourceVersion},
		Items:    []json.RawMessage{},
	}
	bytes, more := 0, false
	err := walk.each(ctx, func(change []byte) bool {
		if more = len(written.Items) == limit || bytes >= pageBytes; more {
			return false
		}
		written.Items = append(written.Items, change)
		bytes += len(change)
		return true
	}, func() error { return nil })
	if err != nil {
		return err
	}
	if more {
		last, err := headerOf(written.Items[len(written.Items)-1])
		if err != nil {
			return corrupt(walk.plan, err)
		}
		if written.Continue, err = newToken(walk.plan, last.Address); err != nil {
			return err
		}
		if walk.filter.hasCount() {
			left := int64(walk.total() - walk.passed)
			written.RemainingItemCount = &left
		}
	}
	text, err := json.Marshal(written)
	if err != nil {
		return fmt.Errorf("encode page: %w", err)
	}
	w.Header().Set("Content-Type", "application/json")
	// The client may be gone, and there is no one else to report this to.
	_, _ = w.Write(append(text, '\n'))
	return nil
}
