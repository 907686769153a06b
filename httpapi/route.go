package httpapi

import (
	"cmp"
	"context"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/wire"
)

// route is what is said about a call besides its types.
type route struct {
	method, path string
	id           string // operationId: stable, client generators make names of it
	tag          string
	summary      string
	description  string
	status       int          // of success; 0 is 200
	public       bool         // needs no token
	limit        int64        // of a JSON body; 0 is maxJSON
	optional     bool         // the JSON body may be left out
	answer       *mediaType   // of success, when it is not JSON
	partial      *mediaType   // of success with status 206, where that can be
	accepted     *mediaType   // of success with status 202, where that can be
	upload       *mediaType   // of the body, when it is not JSON
	codes        []eqvps.Code // what may go wrong besides what always may
}

type mediaType struct {
	name   string
	schema *huma.Schema
	doc    string
	or     *mediaType // another form that the client may ask for; nil: none
}

var octets = &huma.Schema{Type: huma.TypeString, Format: "binary"}

// none is the body of a call that takes none.
type none struct{}

// output is what huma takes a JSON answer from.
type output[O any] struct{ Body O }

// raw is an answer that a route writes by itself.
type raw = func(c *call) error

// handle adds a route. I holds the parameters of path and query, B the JSON
// body, O the JSON answer. The body is documented by huma, but read by decode,
// which is stricter, names fields, and parses it once.
func handle[I, B, O any](s *server, rt route, f func(ctx context.Context, c *call, in *I, body *B) (O, error)) {
	huma.Register(s.api, operation[B](s, rt), func(ctx context.Context, in *I) (*output[O], error) {
		c := callOf(ctx)
		body, err := bodyOf[B](c, rt)
		if err != nil {
			return nil, c.fail(err)
		}
		out, err := f(ctx, c, in, body)
		if err != nil {
			return nil, c.fail(err)
		}
		return &output[O]{Body: out}, nil
	})
}

// handleRaw adds a route that writes its answer itself. An error that the
// function returned by f gives comes too late for a status: the connection is
// cut, so that nobody takes the part for the whole.
func handleRaw[I, B any](s *server, rt route, f func(ctx context.Context, c *call, in *I, body *B) (raw, error)) {
	huma.Register(s.api, operation[B](s, rt), func(ctx context.Context, in *I) (*huma.StreamResponse, error) {
		c := callOf(ctx)
		body, err := bodyOf[B](c, rt)
		if err != nil {
			return nil, c.fail(err)
		}
		write, err := f(ctx, c, in, body)
		if err != nil {
			return nil, c.fail(err)
		}
		return &huma.StreamResponse{Body: func(huma.Context) {
			if err := write(c); err != nil {
				c.err = err
				panic(http.ErrAbortHandler)
			}
		}}, nil
	})
}

func bodyOf[B any](c *call, rt route) (*B, error) {
	body := new(B)
	if _, ok := any(*body).(none); ok || rt.optional && c.body == nil {
		return body, nil
	}
	return body, c.decode(body, cmp.Or(rt.limit, maxJSON))
}

// Metadata of operations.
const (
	metaPublic = "public"
	metaBody   = "body"
)

// operation is what huma and the OpenAPI document know of a route.
func operation[B any](s *server, rt route) huma.Operation {
	registry := s.api.OpenAPI().Components.Schemas
	op := huma.Operation{
		OperationID: rt.id, Method: rt.method, Path: rt.path, Summary: rt.summary, Description: rt.description,
		Tags: []string{rt.tag}, DefaultStatus: cmp.Or(rt.status, http.StatusOK),
		Metadata:  map[string]any{metaPublic: rt.public},
		Responses: map[string]*huma.Response{},

		RejectUnknownQueryParameters: true,
	}
	codes := append([]eqvps.Code{eqvps.CodeInvalidRequest, eqvps.CodeForbidden, eqvps.CodeInternal}, rt.codes...)
	if !rt.public {
		op.Security = []map[string][]string{{"bearer": {}}}
		codes = append(codes, eqvps.CodeUnauthenticated, eqvps.CodeRateLimited)
	}
	if t := reflect.TypeFor[B](); t != reflect.TypeFor[none]() {
		op.Metadata[metaBody] = &huma.RequestBody{
			Required: !rt.optional,
			Content:  map[string]*huma.MediaType{"application/json": {Schema: registry.Schema(t, true, "")}},
		}
		codes = append(codes, eqvps.CodeTooLarge, eqvps.CodeUnsupportedMedia)
	} else if rt.upload != nil {
		op.Metadata[metaBody] = &huma.RequestBody{
			Required: true, Description: rt.upload.doc,
			Content: map[string]*huma.MediaType{rt.upload.name: {Schema: rt.upload.schema}},
		}
	}
	if rt.answer != nil {
		op.Responses[strconv.Itoa(op.DefaultStatus)] = &huma.Response{
			Description: rt.answer.doc,
			Content:     map[string]*huma.MediaType{},
		}
		for m := rt.answer; m != nil; m = m.or {
			op.Responses[strconv.Itoa(op.DefaultStatus)].Content[m.name] = &huma.MediaType{Schema: m.schema}
		}
	}
	for status, m := range map[int]*mediaType{http.StatusAccepted: rt.accepted, http.StatusPartialContent: rt.partial} {
		if m != nil {
			op.Responses[strconv.Itoa(status)] = &huma.Response{
				Description: m.doc,
				Content:     map[string]*huma.MediaType{m.name: {Schema: m.schema}},
			}
		}
	}
	documentErrors(&op, codes, registry.Schema(reflect.TypeFor[wire.Error](), true, ""))
	return op
}

// documentErrors lists the codes by status, with what to do about each.
func documentErrors(op *huma.Operation, codes []eqvps.Code, schema *huma.Schema) {
	byStatus := map[int][]eqvps.Code{}
	for _, k := range eqvps.ErrorTable {
		if slices.Contains(codes, k.Code) {
			byStatus[k.Status] = append(byStatus[k.Status], k.Code)
		}
	}
	for _, status := range slices.Sorted(maps.Keys(byStatus)) {
		var lines []string
		for _, code := range byStatus[status] {
			k := code.Kind()
			lines = append(lines, "`"+string(code)+"`: "+k.Message+" "+k.Fix)
		}
		r := &huma.Response{
			Description: strings.Join(lines, "\n\n"),
			Content:     map[string]*huma.MediaType{"application/json": {Schema: schema}},
			Extensions:  map[string]any{"x-error-codes": byStatus[status]},
		}
		if status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable {
			r.Headers = map[string]*huma.Header{"Retry-After": {
				Description: "Seconds to wait. Present only where the request had no effect, so that repeating it is safe.",
				Schema:      &huma.Schema{Type: huma.TypeInteger},
			}}
		}
		op.Responses[strconv.Itoa(status)] = r
	}
}

// apiConfig is the frame of the OpenAPI document.
func apiConfig() huma.Config {
	registry := huma.NewMapRegistry("#/components/schemas/", huma.DefaultSchemaNamer)
	doc := &huma.OpenAPI{
		OpenAPI: "3.1.0",
		Info: &huma.Info{
			Title: "EQVPS", Version: eqvps.Version,
			Description: "Sandboxes for code nobody has read: each is a virtual machine of its own, ready in a fraction of a second.",
		},
		Components: &huma.Components{
			Schemas: registry,
			SecuritySchemes: map[string]*huma.SecurityScheme{
				"bearer": {Type: "http", Scheme: "bearer", Description: "The token's secret."},
			},
		},
		Tags: []*huma.Tag{
			{Name: "sandboxes", Description: "Create, list and delete sandboxes."},
			{Name: "commands", Description: "Run commands and code in a sandbox."},
			{Name: "files", Description: "Move files in and out of a sandbox."},
			{Name: "secrets", Description: "The account's secrets, and the key that encrypts them."},
			{Name: "tokens", Description: "The account's bearer tokens."},
			{Name: "service", Description: "About the service and the caller."},
		},
		OnAddOperation: []huma.AddOpFunc{func(_ *huma.OpenAPI, op *huma.Operation) {
			// Only now: were it there before, huma would read the body itself.
			if b, ok := op.Metadata[metaBody].(*huma.RequestBody); ok {
				op.RequestBody = b
			}
		}},
	}
	return huma.Config{
		OpenAPI:       doc,
		Formats:       map[string]huma.Format{"application/json": huma.DefaultJSONFormat},
		DefaultFormat: "application/json",
	}
}
