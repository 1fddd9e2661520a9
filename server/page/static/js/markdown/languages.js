// The languages whose code is highlighted: their names, and the regular expressions of their parts.
//
// {names, comments, strings, tags, words, anyCase, calls, lines}
// words: keywords. tags: names of elements, attributes, keys. calls: false where name( is no call.
// lines: whole lines alone have a meaning, so numbers and calls stay plain.

const STRING = String.raw`"(?:[^"\\\n]|\\.)*"?|'(?:[^'\\\n]|\\.)*'?`;
const DOUBLE = String.raw`"(?:[^"\\\n]|\\.)*"?`;
// A quote may also be part of a name or a lifetime: a character, then.
const CHARACTER = String.raw`${DOUBLE}|'(?:[^'\\\n]|\\[^\n]{1,8})'`;
const BACKTICK = String.raw`\x60(?:[^\x60\\]|\\[\s\S])*(?:\x60|$(?![\s\S]))`;
const BLOCK = String.raw`\/\*[\s\S]*?(?:\*\/|$(?![\s\S]))`;
const SLASHES = String.raw`\/\/[^\n]*|${BLOCK}`;
const HASH = String.raw`#[^\n]*`;
const SPACED_HASH = String.raw`(?<=^|\s)#[^\n]*`;
const DASHES = String.raw`--[^\n]*`;
const END = String.raw`$(?![\s\S])`; // the code's end; $ alone is a line's
const MARKUP = String.raw`<\/?[A-Za-z][\w:.-]{0,60}|\/?>|(?<=\s)[A-Za-z_:@][\w:.-]{0,60}(?==)`;

const C_WORDS =
  "auto bool break case char const constexpr continue default do double else enum extern false float for " +
  "goto if inline int long nullptr NULL register restrict return short signed size_t sizeof static struct " +
  "switch true typedef typename union unsigned void volatile while";
const CPP_WORDS =
  `${C_WORDS} catch class concept consteval constinit const_cast co_await co_return co_yield decltype ` +
  "delete dynamic_cast " +
  "explicit export final friend mutable namespace new noexcept operator override private protected public " +
  "reinterpret_cast requires static_assert static_cast template this throw try using virtual";
const SCRIPT_WORDS =
  "as async await break case catch class const continue debugger default delete do else enum export " +
  "extends false finally for from function get if implements import in instanceof interface let new null " +
  "of return set static super switch this throw true try type typeof undefined var void while with yield " +
  "abstract declare keyof namespace private protected public readonly satisfies";

export const LANGUAGES = [
  {
    names: "py python python3 ipython pyi",
    strings: String.raw`[rbfuRBFU]{0,2}(?:"""[\s\S]*?(?:"""|${END})|'''[\s\S]*?(?:'''|${END})|${STRING})`,
    comments: HASH,
    tags: String.raw`^[ \t]{0,40}@[\w.]{1,80}`,
    words:
      "False None True and as assert async await break case class continue def del elif else except " +
      "finally for from global if import in is lambda match nonlocal not or pass raise return self try " +
      "while with yield",
  },
  {
    names: "js javascript jsx mjs cjs node ts typescript tsx",
    strings: `${STRING}|${BACKTICK}`,
    comments: SLASHES,
    words: SCRIPT_WORDS,
  },
  {
    names: "c h",
    strings: STRING,
    comments: SLASHES,
    tags: String.raw`^[ \t]{0,40}#[ \t]{0,9}[a-z]+`,
    words: C_WORDS,
  },
  {
    names: "cpp c++ cc cxx hpp hh cuda cu",
    strings: CHARACTER,
    comments: SLASHES,
    tags: String.raw`^[ \t]{0,40}#[ \t]{0,9}[a-z]+`,
    words: CPP_WORDS,
  },
  {
    names: "cs csharp c#",
    strings: String.raw`[@$]{1,2}"(?:[^"]|"")*"?|${STRING}`,
    comments: SLASHES,
    tags: String.raw`^[ \t]{0,40}#[a-z]+`,
    words:
      "abstract as async await base bool break byte case catch char class const continue decimal default " +
      "delegate do double else enum event explicit extern false finally fixed float for foreach get if " +
      "implicit in init int interface internal is lock long nameof namespace new null object operator out " +
      "override params private protected public readonly record ref required return sbyte sealed set " +
      "short sizeof static string struct switch this throw true try typeof uint ulong using var virtual " +
      "void volatile when where while with yield",
  },
  {
    names: "java",
    strings: String.raw`"""[\s\S]*?(?:"""|${END})|${STRING}`,
    comments: SLASHES,
    tags: String.raw`@[A-Z]\w{0,60}`,
    words:
      "abstract assert boolean break byte case catch char class const continue default do double else " +
      "enum extends false final finally float for if implements import instanceof int interface long " +
      "native new null package permits private protected public record return sealed short static " +
      "strictfp super switch synchronized this throw throws transient true try var void volatile while " +
      "yield",
  },
  {
    names: "go golang",
    strings: `${STRING}|${BACKTICK}`,
    comments: SLASHES,
    words:
      "any bool break byte case chan const continue default defer else error fallthrough false float32 " +
      "float64 for func go goto if import int int32 int64 interface iota map nil package range return " +
      "rune select string struct switch true type uint uint8 uint64 var",
  },
  {
    names: "rust rs",
    strings: CHARACTER,
    comments: SLASHES,
    tags: String.raw`#!?\[[^\]\n]{0,200}\]?|\b[a-z_]\w{0,60}!(?=[(\[{])`,
    words:
      "Self as async await bool box break char const continue crate dyn else enum extern f32 f64 false fn " +
      "for i16 i32 i64 i8 if impl in isize let loop match mod move mut pub ref return self static str " +
      "struct super trait true type u16 u32 u64 u8 union unsafe use usize where while",
  },
  {
    names: "swift",
    strings: String.raw`"""[\s\S]*?(?:"""|${END})|${DOUBLE}`,
    comments: SLASHES,
    tags: String.raw`[@#][A-Za-z]\w{0,60}`,
    words:
      "Any Bool Double Int Self String actor any as associatedtype async await break case catch class " +
      "continue default defer deinit do else enum extension fallthrough false fileprivate for func get " +
      "guard if import in init inout internal is lazy let mutating nil open operator override private " +
      "protocol public repeat rethrows return self set some static struct subscript super switch throw " +
      "throws true try typealias var weak where while",
  },
  {
    names: "kotlin kt kts",
    strings: String.raw`"""[\s\S]*?(?:"""|${END})|${CHARACTER}`,
    comments: SLASHES,
    tags: String.raw`@[A-Za-z]\w{0,60}`,
    words:
      "abstract as break by catch class companion const constructor continue data do else enum false " +
      "final finally for fun if import in infix init inline interface internal is lateinit null object " +
      "open operator out override package private protected public return sealed super suspend this throw " +
      "true try typealias val var vararg when where while",
  },
  {
    names: "php",
    strings: STRING,
    comments: `${SLASHES}|${HASH}`,
    tags: String.raw`<\?(?:php|=)?|\?>|\$\w{1,80}`,
    words:
      "abstract and array as break callable case catch class clone const continue declare default do echo " +
      "else elseif empty enum extends false final finally fn for foreach function global if implements " +
      "include instanceof interface isset list match namespace new null or print private protected public " +
      "readonly require require_once return static switch throw trait true try unset use var while yield",
  },
  {
    names: "rb ruby",
    strings: STRING,
    comments: HASH,
    tags: String.raw`(?<![:\w]):[a-z_]\w{0,60}|@{1,2}\w{1,60}`,
    words:
      "alias and begin break case class def defined do else elsif end ensure false for if in include " +
      "lambda module next nil not or private protected public puts raise redo require rescue retry return " +
      "self super then true undef unless until when while yield",
  },
  {
    names: "sh bash shell zsh fish console terminal shell-session",
    strings: STRING,
    comments: SPACED_HASH,
    tags: String.raw`\$\w{1,60}|\$\{[^}\n]{1,80}\}|(?<=\s)--?[A-Za-z][\w-]{0,60}|^\$(?= )`,
    words:
      "case cd do done echo elif else esac eval exec exit export fi for function if in local read return " +
      "set shift source sudo test then trap unset until while",
    calls: false,
  },
  {
    names: "ps1 powershell pwsh",
    strings: STRING,
    comments: String.raw`<#[\s\S]*?(?:#>|${END})|${SPACED_HASH}`,
    tags: String.raw`\$[\w:]{1,60}|(?<=\s)-[A-Za-z]\w{0,60}|\b[A-Z][a-z]{1,20}-[A-Z]\w{1,40}`,
    words:
      "begin break catch class continue do else elseif end exit filter finally for foreach function if in " +
      "param process return switch throw trap try until while",
    anyCase: true,
  },
  {
    names: "sql mysql postgresql postgres psql sqlite plsql",
    strings: String.raw`'(?:[^'\n]|'')*'?|"[^"\n]*"?`,
    comments: `${DASHES}|${BLOCK}`,
    words:
      "add all alter and as asc begin between by cascade case cast check column commit constraint count " +
      "create cross database default delete desc distinct drop else end except exists explain false for " +
      "foreign from full function group having if in index inner insert intersect into is join key left " +
      "like limit not null offset on or order outer over partition primary recursive references returning " +
      "right rollback select set table then trigger true truncate union unique update using values " +
      "varchar view when where window with int integer text boolean timestamp date",
    anyCase: true,
    calls: false,
  },
  {
    names: "html htm xhtml xml svg vue rss xsl",
    strings: STRING,
    comments: String.raw`<!--[\s\S]*?(?:-->|${END})|<![A-Za-z][^>\n]{0,200}>?|&[#\w]{1,20};`,
    tags: MARKUP,
    calls: false,
  },
  {
    names: "css scss sass less",
    strings: STRING,
    comments: BLOCK,
    tags:
      String.raw`[a-z-]{1,40}(?=\s{0,9}:\s)|--[\w-]{1,60}|[@$][\w-]{1,60}|` +
      String.raw`[.#][A-Za-z_][\w-]{0,60}(?=[^;\n]{0,200}\{)`,
    words: "important from to and not only",
  },
  {
    names: "json jsonc json5 ipynb",
    strings: DOUBLE,
    comments: SLASHES,
    words: "true false null",
    calls: false,
  },
  {
    names: "yaml yml",
    strings: STRING,
    comments: SPACED_HASH,
    tags: String.raw`^[ \t-]{0,60}[\w."/-]{1,80}(?=:(?:\s|$))|[&*]\w{1,60}`,
    words: "true false null yes no on off",
    calls: false,
  },
  {
    names: "toml ini cfg conf properties env dotenv",
    strings: STRING,
    comments: String.raw`(?<=^|\s)[#;][^\n]*`,
    tags: String.raw`^[ \t]{0,40}\[{1,2}[^\]\n]{0,120}\]{0,2}|^[ \t]{0,40}[\w.-]{1,80}(?=\s{0,9}=)`,
    words: "true false null yes no on off",
    calls: false,
  },
  {
    names: "lua",
    strings: String.raw`\[\[[\s\S]*?(?:\]\]|${END})|${STRING}`,
    comments: String.raw`--\[\[[\s\S]*?(?:\]\]|${END})|${DASHES}`,
    words:
      "and break do else elseif end false for function goto if in local nil not or repeat return self then " +
      "true until while",
  },
  {
    names: "r",
    strings: STRING,
    comments: HASH,
    words: "FALSE NA NULL TRUE break else for function if in library next repeat require return while",
  },
  {
    names: "perl pl",
    strings: STRING,
    comments: SPACED_HASH,
    tags: String.raw`[$@%]\w{1,60}`,
    words:
      "and die do else elsif eval for foreach if last local my next no not or our package print return " +
      "sub unless until use while",
  },
  {
    names: "scala",
    strings: String.raw`"""[\s\S]*?(?:"""|${END})|${CHARACTER}`,
    comments: SLASHES,
    words:
      "abstract case catch class def do else enum extends false final finally for given if implicit " +
      "import lazy match new null object override package private protected return sealed super then this " +
      "throw trait true try type using val var while with yield",
  },
  {
    names: "haskell hs",
    strings: CHARACTER,
    comments: String.raw`\{-[\s\S]*?(?:-\}|${END})|${DASHES}`,
    words:
      "case class data default deriving do else foreign if import in infix infixl infixr instance let " +
      "module newtype of then type where",
    calls: false,
  },
  {
    names: "dart",
    strings: String.raw`"""[\s\S]*?(?:"""|${END})|${STRING}`,
    comments: SLASHES,
    words:
      "abstract as assert async await bool break case catch class const continue default do double " +
      "dynamic else enum extends extension factory false final finally for get if implements import in " +
      "int is late new null num on override required return set static String super switch this throw " +
      "true try typedef var void while with yield",
  },
  {
    names: "julia jl",
    strings: String.raw`"""[\s\S]*?(?:"""|${END})|${CHARACTER}`,
    comments: String.raw`#=[\s\S]*?(?:=#|${END})|${HASH}`,
    tags: String.raw`@\w{1,60}`,
    words:
      "abstract begin break catch const continue do else elseif end export false finally for function " +
      "global if import in let local macro module mutable nothing return struct true try using while",
  },
  {
    names: "matlab octave",
    strings: DOUBLE,
    comments: String.raw`%[^\n]*`,
    words:
      "break case catch continue else elseif end false for function global if otherwise return switch true " +
      "try while",
  },
  {
    names: "dockerfile docker containerfile",
    strings: STRING,
    comments: String.raw`^#[^\n]*`,
    tags: String.raw`\$\w{1,60}|\$\{[^}\n]{1,80}\}|(?<=\s)--[A-Za-z][\w-]{0,60}`,
    words:
      "ADD ARG AS CMD COPY ENTRYPOINT ENV EXPOSE FROM HEALTHCHECK LABEL ONBUILD RUN SHELL STOPSIGNAL USER " +
      "VOLUME WORKDIR",
    calls: false,
  },
  {
    names: "make makefile mk cmake",
    strings: STRING,
    comments: HASH,
    tags: String.raw`^[\w./%-]{1,80}(?=\s{0,9}:)|\$[({][^)}\n]{1,80}[)}]|\$[@<^*?]`,
    words: "define else endef endif export ifdef ifeq ifndef ifneq include override function set if foreach",
    calls: false,
  },
  {
    names: "diff patch",
    comments: String.raw`^(?:@@|diff |index |---|\+\+\+)[^\n]*`,
    strings: String.raw`^\+[^\n]*`,
    tags: String.raw`^-[^\n]*`,
    lines: true,
  },
  {
    names: "tex latex",
    comments: String.raw`(?<!\\)%[^\n]*`,
    strings: String.raw`\$[^$\n]{0,400}\$`,
    tags: String.raw`\\(?:[A-Za-z]{1,40}\*?|.)`,
    calls: false,
  },
];
