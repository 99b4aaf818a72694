package scaleschedules

import (
	"context"
	"errors"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/controllers"
)

// withAuthor returns a context whose requests have the author's rights.
func withAuthor(ctx context.Context, author *v1alpha1.ScaleScheduleAuthor) (context.Context, error) {
	var as controllers.Author
	if author != nil {
		as = controllers.Author{Username: author.Username, UID: author.UID, Groups: author.Groups}
	}
	ctx, err := controllers.WithAuthor(ctx, as)
	switch {
	case errors.Is(err, controllers.ErrNoAuthor):
		return nil, refuse(v1alpha1.ReasonScaleForbidden, errors.New("spec.author is not set: change the spec, so that the server records its author"))
	case err != nil:
		return nil, refuse(v1alpha1.ReasonScaleForbidden, errors.New("the author is a part of the control plane: have a user change the spec"))
	}
	return ctx, nil
}
