# Writes OUT, a C++ file with the text of IN behind isola::native::openapi_text(). Raw strings have a length limit, so
# the text comes in pieces.
file(READ ${IN} text)
string(LENGTH "${text}" length)
set(code "#include \"dialect/native/openapi.h\"\n\nnamespace isola::native {\nstd::string_view openapi_text() {\n  static constexpr char kText[] =\n")
set(at 0)
while(at LESS length)
  string(SUBSTRING "${text}" ${at} 8000 piece)
  string(APPEND code "      R\"isola(${piece})isola\"\n")
  math(EXPR at "${at} + 8000")
endwhile()
string(APPEND code "      ;\n  return {kText, sizeof kText - 1};\n}\n}  // namespace isola::native\n")
file(WRITE ${OUT} "${code}")
