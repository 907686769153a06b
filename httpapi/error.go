package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/wire"
)

// apiError is an error on its way to the caller.
type apiError struct {
	body   wire.Error
	status int
}

// MarshalJSON renders what goes over the wire.
func (e *apiError) MarshalJSON() ([]byte, error) { return json.Marshal(e.body) }

// GetStatus and GetHeaders are how huma asks for the rest of the answer.
func (e *apiError) GetStatus() int { return e.status }

func (e *apiError) Error() string { return e.body.Code + ": " + e.body.Message }

// GetHeaders returns the headers that belong to the error.
func (e *apiError) GetHeaders() http.Header {
	h := http.Header{}
	if e.body.RetryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(e.body.RetryAfter))
	}
	if e.status == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", "Bearer")
	}
	return h
}

// defaultRetry is the hint where the error brings none. Only errors that come
// before anything was done are here: clients repeat a call on seeing the hint,
// and a command must not run twice because its sandbox went silent.
var defaultRetry = map[eqvps.Code]time.Duration{
	eqvps.CodeRateLimited:  time.Second,
	eqvps.CodeSandboxLimit: 5 * time.Second,
	eqvps.CodeCapacity:     5 * time.Second,
}

// fail keeps err for the log and returns what the caller is told of it. A code
// outside of the vocabulary, or none, is told as internal; a cause is never
// told.
func (c *call) fail(err error) *apiError {
	if c.err == nil {
		c.err = err
	}
	e := eqvps.AsError(err)
	kind := e.Code.Kind()
	out := &apiError{status: kind.Status, body: wire.Error{
		Code: string(kind.Code), Message: e.Message, Fix: kind.Fix, Next: kind.Next, RequestID: c.id,
	}}
	if e.Message == "" || kind.Code == eqvps.CodeInternal {
		out.body.Message = kind.Message
	}
	retry := e.RetryAfter
	if retry <= 0 {
		retry = defaultRetry[kind.Code]
	}
	out.body.RetryAfter = int((retry + time.Second - 1) / time.Second)
	if c.r.Context().Err() != nil && errors.Is(err, context.Canceled) {
		out.status = statusGone
	}
	return out
}

// statusGone is for the log only: nobody is there to read the answer.
const statusGone = 499

// huma has one place for the whole process in which its own errors are made;
// this package is the only user of it in the program.
func init() {
	huma.NewError = func(int, string, ...error) huma.StatusError { return &apiError{} }
	huma.NewErrorWithContext = func(ctx huma.Context, _ int, msg string, errs ...error) huma.StatusError {
		return callOf(ctx.Context()).fail(parameterError(msg, errs))
	}
}

// parameterError translates what huma finds wrong with a path or a query.
func parameterError(msg string, errs []error) error {
	for _, err := range errs {
		var d huma.ErrorDetailer
		if errors.As(err, &d) {
			detail := d.ErrorDetail()
			name := strings.TrimPrefix(strings.TrimPrefix(detail.Location, "query."), "path.")
			return eqvps.Errorf(eqvps.CodeInvalidRequest, "The parameter %.80q is not usable: %s.", name, detail.Message)
		}
	}
	return eqvps.WrapError(eqvps.CodeInternal, errors.Join(append(errs, errors.New(msg))...))
}
